"""Low-rank adapters (LoRA, 2106.09685) through peft: attach one, turn it off, merge it for saving."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from turnwise.adapter_folders import load_adapter, read_adapter_config
from turnwise.policy.sharding import is_sharded, whole


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """W + (alpha / rank) · B A on the targets: `LoraSettings(rank=8, targets=("q_proj", "v_proj"))`."""

    rank: int = 16
    alpha: float = 32.0
    targets: str | tuple[str, ...] = "all-linear"
    """Names of layers, or all linear ones but the head. Experts and routers are never adapted."""
    seed: int = 0
    """Seed for the random start of A; B starts at zero, so that the policy starts as its base."""
    adapter: Path | None = None
    """A folder in peft's layout to start from, whose settings replace rank, alpha and targets."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"the rank of a LoRA must be at least 1, got {self.rank}")


def attach_lora(model: PreTrainedModel, settings: LoraSettings) -> None:
    """Put an adapter into the model, in place, and freeze everything else."""
    try:
        from peft import LoraConfig
    except ImportError:
        raise ValueError("LoRA needs the peft package: pip install 'turnwise[lora]'") from None
    if settings.adapter is not None:
        read_adapter_config(settings.adapter)
        config: Any = LoraConfig.from_pretrained(str(settings.adapter))
        config.inference_mode, config.init_lora_weights = False, True
    else:
        config = LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,  # pyright: ignore[reportArgumentType]
            target_modules=_targets(model, settings.targets),
            fan_in_fan_out=model.config.model_type == "gpt2",
        )
    _inject(config, model, settings.adapter)
    _refuse_adapted_experts(model)
    if settings.adapter is not None:
        load_adapter(model, settings.adapter)
        return
    noise = torch.Generator().manual_seed(settings.seed)
    for name, parameter in model.named_parameters():
        if ".lora_A." in name:
            bound = 1 / math.sqrt(parameter.shape[1])
            start = (torch.rand(parameter.shape, generator=noise) * 2 - 1) * bound
            parameter.data.copy_(start)


def _inject(config: Any, model: PreTrainedModel, folder: Path | None) -> None:
    from peft import inject_adapter_in_model

    try:
        inject_adapter_in_model(config, model)
    except ValueError as error:
        if folder is None:
            raise
        made_for = read_adapter_config(folder).get("base_model_name_or_path")
        raise ValueError(
            f"the adapter in {folder} does not fit {model.name_or_path}: {error} It was made for {made_for}"
        ) from None


def _targets(model: PreTrainedModel, targets: str | tuple[str, ...]) -> str | list[str]:
    if not isinstance(targets, str):
        return list(targets)
    if targets != "all-linear" or not any(name.endswith(".experts") for name, _ in model.named_modules()):
        return targets
    # By their full names: peft reads the short ones as those of experts, which are not layers.
    head, kinds = model.get_output_embeddings(), (nn.Linear, Conv1D)
    return [name for name, layer in model.named_modules() if isinstance(layer, kinds) and layer is not head]


def _refuse_adapted_experts(model: PreTrainedModel) -> None:
    """ValueError for experts: peft adapts them by changing the running module, which the engine's thread would see."""
    for name, layer in _adapted(model).items():
        if hasattr(layer, "parameter_name"):
            raise ValueError(
                f"LoRA cannot adapt {name.removesuffix('.base_layer')}, which has or selects experts; "
                "remove it from lora.targets"
            )


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name belongs to the adapter."""
    return ".lora_" in name


@contextmanager
def adapter_off(model: nn.Module) -> Iterator[None]:
    """The model without its adapter, inside the block. What was trainable stays so."""
    _enable_adapters(model, False)
    try:
        yield
    finally:
        _enable_adapters(model, True)


def _enable_adapters(model: nn.Module, enabled: bool) -> None:
    """Turn adapters on or off, and nothing else: peft would also change what trains."""
    trainable = {parameter: parameter.requires_grad for parameter in model.parameters()}
    for layer in _adapted(model).values():
        layer.enable_adapters(enabled)
    for parameter, flag in trainable.items():
        parameter.requires_grad_(flag)


def share_base(models: Sequence[nn.Module]) -> None:
    """Let the models hold one copy of the frozen tensors that they have in common: the base under their adapters."""
    held: dict[tuple[str, torch.Size, torch.dtype, torch.device], Tensor] = {}
    for model in models:
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                continue
            key = (name.replace(".base_layer.", "."), parameter.shape, parameter.dtype, parameter.device)
            first = held.setdefault(key, parameter.data)
            if first.data_ptr() != parameter.data_ptr() and torch.equal(first, parameter.data):
                parameter.data = first


def merged_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The weights of an equal model without an adapter, under its own names. The model itself does not change."""
    adapted = _adapted(model)
    for name, tensor in model.state_dict().items():
        layer = adapted.get(name.removesuffix(".base_layer.weight"))
        if layer is not None:
            yield name.replace(".base_layer.", "."), _merged_weight(layer)
        elif not is_adapter(name):
            yield name.replace(".base_layer.", "."), whole(tensor)


@torch.no_grad()
def _merged_weight(layer: Any) -> Tensor:
    weight = whole(layer.get_base_layer().weight)
    with _whole_adapters(layer):
        for adapter in layer.active_adapters:
            weight = weight + layer.get_delta_weight(adapter).to(weight.dtype)
    return weight.detach()


@contextmanager
def _whole_adapters(layer: Any) -> Iterator[None]:
    """The layer with its adapters whole inside the block, where they are sharded."""
    factors = [factor for part in (layer.lora_A, layer.lora_B) for factor in part.values()]
    sharded = [(factor, factor.weight) for factor in factors if is_sharded(factor.weight)]
    for factor, weight in sharded:
        factor.weight = nn.Parameter(whole(weight), requires_grad=False)
    try:
        yield
    finally:
        for factor, weight in sharded:
            factor.weight = weight


def _adapted(model: nn.Module) -> dict[str, Any]:
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
