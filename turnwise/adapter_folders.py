"""LoRA adapters as folders in peft's layout: written beside merged weights or for servers; read, ours or not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX, _NAME = "base_model.model.", "default"
_CHANGES_MORE = (
    "use_dora",
    "lora_bias",
    "modules_to_save",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
)
"""Options of peft with which an adapter is more than two factors beside a linear layer."""
_PLAIN_STARTS = (True, False, "gaussian", "orthogonal", "eva")
"""Ways to draw the first factors that leave the base as it is."""


def adapter_of(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """The whole tensors of the adapter. Every rank must read it, because the model may be sharded."""
    for name, tensor in model.named_parameters():
        if ".lora_" in name:
            yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def write_adapter(folder: Path, model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> None:
    """Write an adapter, of which these are the tensors by `adapter_of`, so that peft and servers load it."""
    named = {_PREFIX + name.replace(f".{_NAME}.", "."): tensor.detach().cpu() for name, tensor in tensors.items()}
    save_file({name: each.contiguous() for name, each in named.items()}, folder / WEIGHTS, metadata={"format": "pt"})
    config = {name: _plain(value) for name, value in _config_of(model).items()}
    config |= {
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.name_or_path,
        "target_modules": _targets(model, tensors),
        "lora_dropout": 0.0,  # it was off
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=1, sort_keys=True))


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """The settings of an adapter that can be trained further; ValueError with the fix for any other folder."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{folder} is not the folder of an adapter ({CONFIG}: {error}); name one that peft's save_pretrained or a "
            "run with LoRA wrote, such as runs/NAME"
        ) from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else None
        raise ValueError(f"the adapter in {folder} is of type {kind}; only LORA can be trained further: merge it first")
    more = [name for name in _CHANGES_MORE if config.get(name)]
    more += ["bias"] if config.get("bias", "none") != "none" else []
    more += ["init_lora_weights"] if config.get("init_lora_weights", True) not in _PLAIN_STARTS else []
    if more:
        raise ValueError(
            f"the adapter in {folder} has {more[0]}={config[more[0]]!r}, which changes more than the adapted layers; "
            "merge it into its base with peft's merge_and_unload, and name the merged model"
        )
    if not isinstance(config.get("r"), int) or not isinstance(config.get("lora_alpha"), int | float):
        raise ValueError(f"{folder / CONFIG} has no r or no lora_alpha; save the adapter again with peft")
    return config


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Put the weights of a folder into a model that has an adapter of the same shape, in place."""
    try:
        found = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"cannot read {folder / WEIGHTS} ({error}); others are not read, because loading them may run code: save "
            "the adapter with peft's save_pretrained"
        ) from None
    named = {_in_model(name): tensor for name, tensor in found.items()}
    own = {name: parameter for name, parameter in model.named_parameters() if ".lora_" in name}
    wrong = sorted(named.keys() ^ own.keys()) or [name for name in own if own[name].shape != named[name].shape]
    if wrong:
        made_for = read_adapter_config(folder).get("base_model_name_or_path")
        raise ValueError(
            f"the adapter in {folder} does not fit {model.name_or_path} (at {wrong[0]}); it was made for {made_for}: "
            "name that model as model.name"
        )
    for name, parameter in own.items():
        parameter.data.copy_(named[name])


def _in_model(name: str) -> str:
    """`base_model.model.….lora_A.weight` on disk is `….lora_A.default.weight`."""
    module, dot, rest = name.removeprefix(_PREFIX).partition(".lora_")
    factor, _, last = rest.partition(".")
    return f"{module}{dot}{factor}.{_NAME}.{last}"


def _config_of(model: PreTrainedModel) -> dict[str, Any]:
    known: Any = model
    return known.peft_config[_NAME].to_dict()


def _plain(value: Any) -> Any:
    """The same as JSON has it, in an order that no process changes."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    return value.value if isinstance(value, Enum) else value


def _targets(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> list[str]:
    """The adapted layers by their last names; by their whole names if other layers are called the same."""
    layers = {name.split(".lora_")[0] for name in tensors}
    short = {layer.rpartition(".")[2] for layer in layers}
    # Inside an adapted layer there are more modules, under names such as base_layer.
    alike = {name for name, _ in model.named_modules() if name.rpartition(".")[2] in short}
    return sorted(short if alike == layers else layers)
