"""The sizes of a model, from its config alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from turnwise.policy.models import resolve_model
from turnwise.train.config import CONTEXT, ModelChoice


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a model's config tells without its weights."""

    parameters: int
    trained: int
    """Parameters that learn: all of them, or those of the adapter."""
    embedded: int
    """Parameters of tables that are looked up and never multiplied."""
    layers: int
    width: int
    inner_width: int
    context: int

    @property
    def multiplied(self) -> int:
        """Parameters that every token is multiplied by."""
        return self.parameters - self.embedded


def read_shape(choice: ModelChoice) -> Shape:
    """The sizes of a model that is on this machine."""
    model, config = _blank(choice.name)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    table = model.get_input_embeddings().weight
    tied = table is model.get_output_embeddings().weight
    return Shape(
        parameters=parameters,
        trained=parameters if choice.lora is None else _adapter_size(model, choice.lora.rank),
        embedded=0 if tied else table.numel(),  # a tied table is multiplied with, as the head
        layers=int(config.num_hidden_layers),
        width=int(config.hidden_size),
        inner_width=int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size),
        context=int(getattr(config, "max_position_embeddings", None) or CONTEXT),
    )


def _blank(name: str) -> tuple[Any, Any]:
    """The model without memory for its weights, and its config."""
    place = resolve_model(name)
    try:
        config = AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False), config
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
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer is not head]
    return sum(rank * (layer.in_features + layer.out_features) for layer in layers)
