"""Ranks: the processes that train one policy together, each on its share of the data.

One small object provides sums over ranks, values that rank 0 decides, and each rank's share of the work. With one rank
results are bit-identical. Rank 0 owns the run folder, the console and the guard.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from torch import Tensor

Reduce = Callable[["Tensor"], "Tensor"]
"""Sums a tensor over all ranks."""
Value = TypeVar("Value")


def alone(values: Tensor) -> Tensor:
    """The `reduce` of a single rank."""
    return values


class Ranks(Protocol):
    """The interface of a group of ranks. Every rank makes the same calls in the same order."""

    @property
    def rank(self) -> int:
        """This rank's number, from 0."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks."""
        ...

    def reduce(self, values: Tensor) -> Tensor:
        """The sum over all ranks, bit-identical on each."""
        ...

    def gather(self, value: Value) -> list[Value]:
        """Every rank's plain value, in rank order."""
        ...

    def broadcast(self, value: Value) -> Value:
        """Rank 0's plain value."""
        ...

    def share(self, items: Sequence[Value]) -> list[Value]:
        """This rank's items: a contiguous block, so that the shares in rank order are the whole."""
        ...


class OneRank:
    """A single rank."""

    rank, size = 0, 1

    def reduce(self, values: Tensor) -> Tensor:
        """The values unchanged."""
        return values

    def gather(self, value: Value) -> list[Value]:
        """A list of just this value."""
        return [value]

    def broadcast(self, value: Value) -> Value:
        """The value itself."""
        return value

    def share(self, items: Sequence[Value]) -> list[Value]:
        """All of them."""
        return list(items)


ALONE = OneRank()


def is_first() -> bool:
    """Whether this process speaks to the user: of several that a launcher started, only rank 0 does."""
    return int(os.environ.get("RANK", "0")) == 0


def are_several() -> bool:
    """Whether a launcher such as torchrun started several processes of this command."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def block(items: Sequence[Value], rank: int, size: int) -> list[Value]:
    """The contiguous block of one rank; block lengths differ by at most one."""
    return list(items[len(items) * rank // size : len(items) * (rank + 1) // size])


def on_first(ranks: Ranks, work: Callable[[], Value]) -> Value:
    """Let rank 0 work; every rank gets the result."""
    return ranks.broadcast(cast(Value, work() if ranks.rank == 0 else None))
