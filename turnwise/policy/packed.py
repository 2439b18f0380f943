"""The packed forward pass: sequences of any length in one row, without padding, unable to see each other.

It plugs into transformers as an attention function, so every model that looks its attention up there can run packed:
variable-length attention on CUDA in half precision; causal attention over buckets of similar length elsewhere, and
where scores are bounded.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel

from turnwise.expert_routing import Routing
from turnwise.model_attention import Kind, bounded_attention, use_our_attention

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # torch before 2.10
    varlen_attn = None

_VARLEN_OPTIONS = frozenset(inspect.signature(varlen_attn).parameters) if varlen_attn is not None else frozenset[str]()


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the sequences of a packed row are: `Layout.of(torch.tensor([3, 5]))` has offsets [0, 3, 8]."""

    lengths: tuple[int, ...]
    longest: int
    offset_S: Tensor
    """The first token of each sequence, and one past the last token of all."""
    routing: Routing | None = None
    """What the pass does with the choices of experts."""

    @classmethod
    def of(cls, length_S: Tensor, routing: Routing | None = None) -> Layout:
        """The layout of sequences of these lengths. Reads them once from the device."""
        offset_S = torch.cat([length_S.new_zeros(1), length_S.cumsum(0)]).int()
        lengths = tuple(length_S.tolist())
        return cls(lengths=lengths, longest=max(lengths, default=0), offset_S=offset_S, routing=routing)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, kind: Kind) -> Tensor:
        """Causal attention inside each sequence: [1, heads, T, width] to [1, T, heads, width]."""
        if kind.softcap is None and _varlen_serves(query, value):
            return _varlen(query, key, value, self, kind)[None]
        return _bucketed(query, key, value, self, kind)[None]  # pyright: ignore[reportCallIssue]

    @cached_property
    def buckets(self) -> list[Tensor]:
        """Token rows [n, length] of sequences of similar length; shorter ones are padded with their last token."""
        length_S, device = self.offset_S.diff(), self.offset_S.device
        rows: list[Tensor] = []
        for width, group in self._groups.items():
            chosen = torch.tensor(group, device=device)[:, None]
            step = torch.arange(width, device=device)
            rows.append(self.offset_S[chosen] + torch.minimum(step, length_S[chosen] - 1))
        return rows

    @cached_property
    def row_M(self) -> Tensor:
        """The token rows of all buckets, one after the other."""
        return torch.cat([rows.flatten() for rows in self.buckets])

    @cached_property
    def place_T(self) -> Tensor:
        """The position of each token in the concatenated buckets."""
        place: list[range] = [range(0)] * len(self.lengths)
        start = 0
        for width, group in self._groups.items():
            for number in group:
                place[number] = range(start, start + self.lengths[number])
                start += width
        return torch.tensor([token for run in place for token in run], device=self.offset_S.device)

    @cached_property
    def _groups(self) -> dict[int, list[int]]:
        """Sequences by their rounded length; empty ones are left out."""
        groups: dict[int, list[int]] = {}
        for number, length in enumerate(self.lengths):
            if length:
                groups.setdefault(_rounded_up(length), []).append(number)
        return groups


def packed_hidden(model: PreTrainedModel, ids_T: Tensor, position_T: Tensor, layout: Layout) -> Tensor:
    """Hidden states [T, d] of the model's trunk after its last norm; row t has seen tokens up to t of its sequence."""
    use_our_attention(model)
    output = model.base_model(input_ids=ids_T[None], position_ids=position_T[None], use_cache=False, layout=layout)
    return output.last_hidden_state[0]


def _varlen_serves(query: Tensor, value: Tensor) -> bool:
    """The flash kernel needs half precision and heads of equal width; older versions take no window."""
    fits = query.shape[-1] == value.shape[-1] <= 256 and query.shape[-1] % 8 == 0
    return (
        query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and fits and "window_size" in _VARLEN_OPTIONS
    )


def _varlen(query: Tensor, key: Tensor, value: Tensor, layout: Layout, kind: Kind) -> Tensor:
    attend: Any = varlen_attn
    # Versions without the option share keys among query heads anyway.
    options = {"enable_gqa": query.shape[1] != key.shape[1]} if "enable_gqa" in _VARLEN_OPTIONS else {}
    return attend(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        layout.offset_S,
        layout.offset_S,
        layout.longest,
        layout.longest,
        scale=kind.scale,
        window_size=(-1 if kind.window is None else kind.window - 1, 0),
        **options,
    )


@torch.compiler.disable  # its loop differs from batch to batch, so tracing would recompile each time
def _bucketed(query: Tensor, key: Tensor, value: Tensor, layout: Layout, kind: Kind) -> Tensor:
    """One call per bucket. The padding comes after every real token, where causal attention cannot see it."""
    # Gathered once for all buckets: the backward pass of a gather writes the whole row, however little it took.
    gathered = [states[0].transpose(0, 1).index_select(0, layout.row_M) for states in (query, key, value)]
    sizes = [rows.numel() for rows in layout.buckets]
    outputs: list[Tensor] = []
    for rows, *pieces in zip(layout.buckets, *(states.split(sizes) for states in gathered), strict=True):
        q, k, v = (piece.unflatten(0, rows.shape).transpose(1, 2) for piece in pieces)
        output = _attend(q, k, v, kind)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[layout.place_T]


def _attend(query: Tensor, key: Tensor, value: Tensor, kind: Kind) -> Tensor:
    """Causal attention over sequences of one length."""
    length = query.shape[-2]
    window = min(kind.window or length, length)
    if kind.softcap is not None:
        return bounded_attention(query, key, value, _band(length, window, query.device), kind)
    # A window that reaches back to the first token needs no mask.
    mask = _band(length, window, query.device) if window < length else None
    shared = query.shape[1] != key.shape[1]
    return scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=kind.scale, enable_gqa=shared
    )


def _band(length: int, window: int, device: torch.device) -> Tensor:
    """The mask of a sliding window."""
    distance = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
    return (distance >= 0) & (distance < window)


def _rounded_up(length: int) -> int:
    """Few distinct lengths, with at most a quarter of padding (short ones: up to 8)."""
    step = max(8, 1 << max(length.bit_length() - 3, 0))
    return -(-length // step) * step
