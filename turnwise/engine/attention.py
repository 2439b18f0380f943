"""Attention of new tokens over the slots, in plain torch. It also stores the new tokens' keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from turnwise.engine.memory import SlotCache
from turnwise.model_attention import Kind, bounded_attention


class Attend(Protocol):
    """Called once per layer with the new tokens' `[N, heads, head_dim]`; returns their attention output."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, kind: Kind) -> Tensor: ...


class DecodeAttend:
    """One new token for each of several slots."""

    def __init__(self, cache: SlotCache, slot_B: Tensor, position_B: Tensor) -> None:
        self._cache, self._slot_B, self._position_B = cache, slot_B, position_B
        self._longest = int(position_B.max()) + 1
        used = int(slot_B.max()) + 1
        # Reading a view of all slots is faster than copying the chosen ones if most of the view is used.
        self._in_place = used <= 2 * slot_B.numel()
        rows = used if self._in_place else slot_B.numel()
        last_R = torch.zeros(rows, dtype=torch.long, device=slot_B.device)
        self._row_B = slot_B if self._in_place else torch.arange(rows, device=slot_B.device)
        last_R[self._row_B] = position_B
        self._last_R = last_R
        self._visible: dict[int, Tensor] = {}
        """By window size, which may differ between layers."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, kind: Kind) -> Tensor:
        cache = self._cache
        cache.write(layer, self._slot_B, self._position_B, key, value)
        rows = self._last_R.numel()
        if self._in_place:
            keys, values = cache.keys[layer][:rows, :, : self._longest], cache.values[layer][:rows, :, : self._longest]
            wide = query.new_zeros((rows, *query.shape[1:]))
            wide[self._row_B] = query
        else:
            keys = cache.keys[layer][:, :, : self._longest][self._slot_B]
            values = cache.values[layer][:, :, : self._longest][self._slot_B]
            wide = query
        return _attend(wide[:, :, None], keys, values, self._seen(kind.window), kind)[self._row_B, :, 0]

    def _seen(self, window: int | None) -> Tensor:
        window = min(window or self._longest, self._longest)
        if window not in self._visible:
            self._visible[window] = _visible(self._last_R, self._longest, window)[:, None, None, :]
        return self._visible[window]


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """New tokens of one slot: rows `start : start + length` of the flat input, at positions `position …`."""

    slot: int
    start: int
    length: int
    position: int


class PrefillAttend:
    """Runs of new tokens for several slots, each seeing its own slot only."""

    def __init__(self, cache: SlotCache, chunks: Sequence[Chunk], slot_N: Tensor, position_N: Tensor) -> None:
        self._cache, self._chunks, self._slot_N, self._position_N = cache, chunks, slot_N, position_N

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, kind: Kind) -> Tensor:
        cache = self._cache
        cache.write(layer, self._slot_N, self._position_N, key, value)
        out = torch.empty_like(query)
        for chunk in self._chunks:
            rows, end = slice(chunk.start, chunk.start + chunk.length), chunk.position + chunk.length
            result = _attend(
                query[rows].transpose(0, 1)[None],
                cache.keys[layer][chunk.slot : chunk.slot + 1, :, :end],
                cache.values[layer][chunk.slot : chunk.slot + 1, :, :end],
                _visible(self._position_N[rows], end, kind.window),
                kind,
            )
            out[rows] = result[0].transpose(0, 1)
        return out


def _visible(position_N: Tensor, end: int, window: int | None) -> Tensor:
    """Which of the positions up to `end` each token sees, itself included: `[N, end]`."""
    reach = torch.arange(end, device=position_N.device)[None, :]
    seen = reach <= position_N[:, None]
    return seen if window is None or window >= end else seen & (reach > position_N[:, None] - window)


def _attend(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, kind: Kind) -> Tensor:
    if kind.softcap is not None:
        return bounded_attention(query, keys, values, visible, kind)
    return scaled_dot_product_attention(query, keys, values, attn_mask=visible, scale=kind.scale, enable_gqa=True)
