"""Several ranks in one process: every rank is a thread, and whatever they exchange waits for all of them."""

import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from turnwise.ranks import Ranks, Reduce, block

Result = TypeVar("Result")
Value = TypeVar("Value")


class _Meeting:
    """Where the ranks meet: each brings a value, each leaves with all of them."""

    def __init__(self, size: int) -> None:
        self.brought: list[Any] = [None] * size
        self.everyone = threading.Barrier(size, timeout=120)

    def exchange(self, rank: int, value: Value) -> list[Value]:
        self.brought[rank] = value
        self.everyone.wait()
        all_of_them = list(self.brought)
        self.everyone.wait()  # nobody brings the next value before all have read this one
        return all_of_them


@dataclass(frozen=True)
class SimulatedRanks:
    """One of several ranks that are threads of this process."""

    rank: int
    size: int
    meeting: _Meeting

    def reduce(self, values: Tensor) -> Tensor:
        brought = self.meeting.exchange(self.rank, values)
        kinds = {(tensor.dtype, tensor.device, tensor.shape) for tensor in brought}
        assert len(kinds) == 1, f"a real all-reduce would fail or hang: ranks bring {kinds}"
        return torch.stack(brought).sum(0)

    def gather(self, value: Value) -> list[Value]:
        return [_sent(each) for each in self.meeting.exchange(self.rank, pickle.dumps(value))]

    def broadcast(self, value: Value) -> Value:
        return _sent(self.meeting.exchange(self.rank, pickle.dumps(value))[0])

    def share(self, items: Sequence[Value]) -> list[Value]:
        return block(items, self.rank, self.size)


def _sent(value: bytes) -> Any:
    """As between processes: nobody shares an object with another rank."""
    return pickle.loads(value)


def as_ranks(work: Sequence[Callable[[Ranks], Result]]) -> list[Result]:
    """Run one piece of work per rank and return the results in rank order."""
    meeting = _Meeting(len(work))

    def run(rank: int) -> Result:
        try:
            return work[rank](SimulatedRanks(rank, len(work), meeting))
        except BaseException:
            meeting.everyone.abort()  # or the others would wait for this one
            raise

    with ThreadPoolExecutor(len(work)) as pool:
        running = [pool.submit(run, rank) for rank in range(len(work))]
        failures = [future.exception(timeout=300) for future in running]
        for failure in sorted(filter(None, failures), key=lambda each: isinstance(each, threading.BrokenBarrierError)):
            raise failure
        return [future.result() for future in running]


def on_ranks(work: Sequence[Callable[[Reduce], Result]]) -> list[Result]:
    """The same for work that only sums over ranks."""

    def summing(piece: Callable[[Reduce], Result], ranks: Ranks) -> Result:
        return piece(ranks.reduce)

    return as_ranks([partial(summing, piece) for piece in work])
