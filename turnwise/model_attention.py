"""Our attention function in transformers. Each caller supplies the part that attends.

The learner attends inside packed sequences, the engine over its slots of keys and values. This file reads what a
model family adds to plain causal attention, once for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax
from transformers import AttentionInterface, PreTrainedModel

ATTENTION = "turnwise"
"""Name of the attention function in transformers."""
_UNSUPPORTED = {"s_aux": "attention sinks", "position_bias": "position biases"}
_LAYER_TYPES = (None, "full_attention", "sliding_attention")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a layer attends, besides being causal."""

    scale: float
    window: int | None = None
    """How many tokens it sees, including the newest; None: all."""
    softcap: float | None = None
    """Scores are bounded to ± this."""


class Attender(Protocol):
    """Passed to a model as `layout=`: it computes the attention of every layer."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, kind: Kind) -> Tensor:
        """From [1, heads, T, width] each to [1, T, heads, width]."""
        ...


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    layout: Attender | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer.

    Dropout is ignored: log-probs must belong to the distribution that was sampled.
    """
    if layout is None:
        raise ValueError(
            f"{type(module).__name__} got no sequence layout: either the model is set up for packed sequences "
            "and was called differently (call model.set_attn_implementation('sdpa') first), or its family does not "
            "pass options to its attention and is not supported"
        )
    _refuse_unsupported(module, attention_mask, others)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    kind = Kind(scale=scale, window=_window(module, sliding_window), softcap=softcap)
    return layout.attend(getattr(module, "layer_idx", 0), query, key, value, kind), None


def bounded_attention(query: Tensor, key: Tensor, value: Tensor, visible: Tensor, kind: Kind) -> Tensor:
    """softmax(c · tanh(scale · q kᵀ / c)) v over what is visible; torch's own attention has no such bound c."""
    assert kind.softcap is not None
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    scores = kind.softcap * torch.tanh(query @ key.transpose(-1, -2) * kind.scale / kind.softcap)
    weights = softmax(scores.masked_fill(~visible, float("-inf")), dim=-1, dtype=torch.float32)
    return weights.to(query.dtype) @ value


def use_our_attention(model: PreTrainedModel) -> None:
    """Set the model up for calls with `layout=`."""
    if model.config._attn_implementation == ATTENTION:
        return
    model.set_attn_implementation(ATTENTION)
    if model.config._attn_implementation != ATTENTION:
        raise ValueError(
            f"{type(model).__name__} computes attention in its own way, outside transformers' attention "
            "interface; use one of the families in docs/models.md"
        )


@contextmanager
def as_transformers_runs_it(model: PreTrainedModel) -> Iterator[None]:
    """The model for plain calls, as its authors run it for inference; it is restored afterwards."""
    usual, trains = model.config._attn_implementation or "eager", model.training
    model.set_attn_implementation("eager")
    model.eval()
    try:
        yield
    finally:
        model.set_attn_implementation(usual)
        model.train(trains)


def relative_distance(actual: Tensor, expected: Tensor) -> float:
    """|actual − expected| / |expected|."""
    return float((actual.float() - expected.float()).norm() / expected.float().norm().clamp_min(1e-30))


def rounding(model: PreTrainedModel) -> float:
    """How far two exact ways to run a model may differ, relative to the result.

    Layers round, and their errors add up as a random walk. In half precision we saw 1.5 ε √layers on random models of
    2 to 48 layers, with experts and without; a wrong window, scale or position is off by far more.
    """
    layers = int(model.config.get_text_config().num_hidden_layers)
    return max(1e-4, 4 * torch.finfo(model.dtype).eps * layers**0.5)


def _refuse_unsupported(module: nn.Module, attention_mask: Tensor | None, others: dict[str, Any]) -> None:
    for name, meaning in _UNSUPPORTED.items():
        if others.get(name) is not None:
            raise ValueError(f"{type(module).__name__} has {meaning} ({name}), which our attention does not support")
    if attention_mask is not None or not getattr(module, "is_causal", True):
        raise ValueError(f"{type(module).__name__} is not plain causal attention; use a decoder-only language model")


def _window(module: nn.Module, given: int | None) -> int | None:
    """The window of a layer; some families (Qwen2-MoE) pass it only to the mask, which we do not build."""
    config: Any = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None)
    kind = kinds[module.layer_idx] if kinds else None  # pyright: ignore[reportArgumentType, reportCallIssue]
    if kind not in _LAYER_TYPES:
        raise ValueError(f"{type(module).__name__} has {kind} layers, which our attention does not support")
    if given or kind == "full_attention":
        return given or None
    window = getattr(config, "sliding_window", None) or None
    if window is not None and kind is None:
        raise ValueError(
            f"{type(module).__name__} has a sliding window of {window} tokens but does not pass it to its attention; "
            "set sliding_window to null in the model's config.json if contexts are shorter"
        )
    return window


AttentionInterface.register(ATTENTION, attention)
