"""The sizes of a model, from its config alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from turnwise.policy.models import resolve_model
from turnwise.recipe.schema import CONTEXT, ModelChoice


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model's sizes, from its config without its weights."""

    parameters: int
    trained: int
    """Parameters that learn: all of them, or those of the adapter."""
    embedded: int
    """Parameters of tables that are looked up and never multiplied."""
    idle: int
    """Parameters of experts that a token does not choose."""
    layers: int
    width: int
    inner_width: int
    """Of the feed-forward layers that a token goes through, all its experts together."""
    score_heads: int
    """Heads whose scores of all token pairs are kept: those of bounded attention, which is not fused."""
    context: int

    @property
    def multiplied(self) -> int:
        """Parameters that every token is multiplied by."""
        return self.parameters - self.embedded - self.idle


def read_shape(choice: ModelChoice) -> Shape:
    """The sizes of a model that is on this machine."""
    model, config = _blank(choice.name)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    tied = head is not None and table is head.weight
    bounded = getattr(config, "attn_logit_softcapping", None) is not None
    return Shape(
        parameters=parameters,
        trained=parameters if choice.lora is None else _adapter_size(model, choice.lora.rank),
        embedded=0 if tied else table.numel(),  # a tied table is multiplied with, as the head
        idle=_idle(model, config),
        layers=int(config.num_hidden_layers),
        width=int(config.hidden_size),
        inner_width=_inner_width(config),
        score_heads=int(config.num_attention_heads) if bounded else 0,
        context=int(getattr(config, "max_position_embeddings", None) or CONTEXT),
    )


def _experts(config: Any) -> tuple[int, int]:
    """How many experts a token chooses, and of how many; (1, 1) for a model without."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    count = next((int(found) for name in names if (found := getattr(config, name, None))), 1)
    return min(int(getattr(config, "num_experts_per_tok", None) or 1), count), count


def _idle(model: Any, config: Any) -> int:
    chosen, count = _experts(config)
    sizes = sum(parameter.numel() for name, parameter in model.named_parameters() if ".experts." in name)
    return sizes * (count - chosen) // count


def _inner_width(config: Any) -> int:
    chosen, count = _experts(config)
    width = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    if count == 1:
        return int(width)
    each = getattr(config, "moe_intermediate_size", None) or width
    return int(chosen * each + (getattr(config, "shared_expert_intermediate_size", None) or 0))


def _blank(name: str) -> tuple[Any, Any]:
    """The model without memory for its weights, and its config."""
    place = resolve_model(name)
    try:
        config = AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False), config.get_text_config()
    except (OSError, ValueError) as error:
        if Path(place).is_dir():
            why = str(error).splitlines()[0]
            raise ValueError(f"model.name is {name!r}, a folder without a causal language model: {why}") from None
    raise ValueError(
        f"model.name is {name!r}, and there is no such model on this machine; give nano, smollm2-135m or a model's "
        f"folder, or fetch it from the hub: hf download {name}"
    )


def _adapter_size(model: Any, rank: int) -> int:
    head = model.get_output_embeddings()
    layers = [layer for layer in model.modules() if isinstance(layer, (nn.Linear, Conv1D)) and layer is not head]
    return sum(rank * sum(layer.weight.shape) for layer in layers)
