"""Storage for keys and values, and for the experts of each token: one slot per session, kept between turns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class CacheShape:
    """What one token's keys and values look like in a model."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    experts: int = 0
    """Choices of experts that are recorded, in all layers together."""

    def bytes_per_slot(self, capacity: int) -> int:
        """Memory of a session that may grow to `capacity` tokens."""
        kept = 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize
        return (kept + self.experts * torch.int16.itemsize) * capacity


class SlotCache:
    """Keys and values per layer, `[slots + 1, kv_heads, capacity, head_dim]`; the last slot is scratch for padding."""

    def __init__(self, shape: CacheShape, *, slots: int, capacity: int, device: torch.device) -> None:
        self.slots, self.capacity, self.device, self._shape = slots, capacity, device, shape
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._experts: Tensor | None = None
        self.restore()

    def release(self) -> None:
        """Free the memory; `restore` before the next use."""
        self.keys, self.values, self._experts = [], [], None

    def restore(self) -> None:
        """Take memory, unless it has it; what was stored is gone."""
        if not self.keys:
            size = (self.slots + 1, self._shape.kv_heads, self.capacity, self._shape.head_dim)
            self.keys, self.values = (
                [torch.zeros(size, dtype=self._shape.dtype, device=self.device) for _ in range(self._shape.layers)]
                for _ in range(2)
            )
            if self.records:
                size = (self.slots + 1, self.capacity, self._shape.experts)
                self._experts = torch.zeros(size, dtype=torch.int16, device=self.device)

    @property
    def records(self) -> bool:
        """Whether it keeps the experts of every token."""
        return self._shape.experts > 0

    @property
    def scratch(self) -> int:
        return self.slots

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Give `target` the first `length` tokens of `source`."""
        for table in (*self.keys, *self.values):
            table[target, :, :length].copy_(table[source, :, :length])
        if self._experts is not None:
            self._experts[target, :length] = self._experts[source, :length]

    def write(self, layer: int, slot_N: Tensor, position_N: Tensor, key: Tensor, value: Tensor) -> None:
        """Store the new tokens' keys and values, `[N, kv_heads, head_dim]` each."""
        self.keys[layer][slot_N, :, position_N] = key
        self.values[layer][slot_N, :, position_N] = value

    def write_experts(self, slot_N: Tensor, position_N: Tensor, experts_NE: Tensor) -> None:
        """Store the new tokens' experts."""
        assert self._experts is not None
        self._experts[slot_N, position_N] = experts_NE

    def read_experts(self, slot: int, start: int, end: int) -> list[list[int]]:
        """The experts of some tokens, if they are kept."""
        return [] if self._experts is None else self._experts[slot, start:end].tolist()


def slots_within(budget_bytes: int, shape: CacheShape, capacity: int) -> int:
    """How many sessions fit; ValueError with the fix when not even one does."""
    each = shape.bytes_per_slot(capacity)
    if budget_bytes < each:
        raise ValueError(
            f"the memory budget of {budget_bytes:,} bytes is too small: one session of {capacity} tokens needs "
            f"{each:,}; raise memory_bytes (engine.memory_gib in a recipe) or lower capacity (rollout.context)"
        )
    return budget_bytes // each
