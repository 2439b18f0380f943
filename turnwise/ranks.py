"""Ranks: the processes that train one policy together, each on its share of the data.

One small object is handed to whoever needs it: sums over ranks, values that rank 0 decides, and who plays what. With
one rank nothing changes, to the bit. Rank 0 owns the run folder, the console and the guard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Reduce = Callable[["Tensor"], "Tensor"]
"""Sums a tensor over all ranks."""
Value = TypeVar("Value")


def alone(values: Tensor) -> Tensor:
    """The `reduce` of a single rank."""
    return values


class Ranks(Protocol):
    """What a group of ranks must do. Every rank makes the same calls in the same order."""

    @property
    def rank(self) -> int:
        """Which of them this is, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def reduce(self, values: Tensor) -> Tensor:
        """The sum over all ranks; equal to the bit on each of them."""
        ...

    def gather(self, value: Value) -> list[Value]:
        """Every rank's plain value, in the order of the ranks."""
        ...

    def broadcast(self, value: Value) -> Value:
        """Rank 0's plain value."""
        ...

    def share(self, items: Sequence[Value]) -> list[Value]:
        """This rank's items: contiguous blocks, so that the ranks' shares in order are the whole."""
        ...


class OneRank:
    """The only rank there is."""

    rank, size = 0, 1

    def reduce(self, values: Tensor) -> Tensor:
        """Nothing is added."""
        return values

    def gather(self, value: Value) -> list[Value]:
        """The value alone."""
        return [value]

    def broadcast(self, value: Value) -> Value:
        """The value itself."""
        return value

    def share(self, items: Sequence[Value]) -> list[Value]:
        """All of them."""
        return list(items)


ALONE = OneRank()


def block(items: Sequence[Value], rank: int, size: int) -> list[Value]:
    """The contiguous block of one rank; blocks differ in length by at most one."""
    return list(items[len(items) * rank // size : len(items) * (rank + 1) // size])
