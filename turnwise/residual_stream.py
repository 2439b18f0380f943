"""The residual stream of a half-precision model in single precision.

Every layer adds to the stream and rounds the sum. In bf16 these roundings are the largest part of the noise that makes
two exact ways to run a model (learner and engine) disagree. In single precision they cost no matrix work: weights,
products, attention, keys and values stay in bf16. `python benchmarks/big.py` measures the difference.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

LLAMA_FAMILY = frozenset({"llama", "qwen2", "qwen3", "mistral"})
"""Models made of the same layers: norm, attention, norm, gated feed-forward."""


def widen_residual(model: PreTrainedModel) -> None:
    """Let a half-precision model of the Llama family add up its layers in single precision; others stay as they are."""
    body: Any = model.base_model
    if model.dtype == torch.float32 or model.config.model_type not in LLAMA_FAMILY or is_wide(model):
        return
    body.embed_tokens.register_forward_hook(_widen)
    for layer in body.layers:
        layer.input_layernorm.register_forward_hook(_narrow)
        layer.post_attention_layernorm.register_forward_hook(_narrow)
    body.norm.register_forward_hook(_narrow)
    body.rotary_emb.register_forward_hook(partial(_narrow_all, dtype=model.dtype))


def is_wide(model: PreTrainedModel) -> bool:
    """Whether `widen_residual` has changed it."""
    embed = model.get_input_embeddings()
    return _widen in embed._forward_hooks.values()


def _widen(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output.float()


def _narrow(module: Any, inputs: Any, output: Tensor) -> Tensor:
    """The sum of layers sees no rounding before the norm; what comes next multiplies in the weights' precision."""
    return output.to(module.weight.dtype)


def _narrow_all(
    module: nn.Module, inputs: Any, outputs: tuple[Tensor, ...], *, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    return tuple(output.to(dtype) for output in outputs)
