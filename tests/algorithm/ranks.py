"""Several ranks in one process: threads that meet in a sum."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor

Shard = TypeVar("Shard")
Result = TypeVar("Result")


def run_on_ranks(shards: Sequence[Shard], work: Callable[[Shard, Callable[[Tensor], Tensor]], Result]) -> list[Result]:
    """Call `work(shard, reduce)` for every shard at once; `reduce` returns the sum over all of them."""
    barrier = threading.Barrier(len(shards), timeout=20)
    offered: list[Tensor | None] = [None] * len(shards)

    def reducer(rank: int) -> Callable[[Tensor], Tensor]:
        def reduce(values: Tensor) -> Tensor:
            offered[rank] = values.clone()
            barrier.wait()
            total = sum(part for part in offered if part is not None)
            barrier.wait()
            assert isinstance(total, Tensor)
            return total

        return reduce

    with ThreadPoolExecutor(len(shards)) as pool:
        jobs = [pool.submit(work, shard, reducer(rank)) for rank, shard in enumerate(shards)]
        return [job.result() for job in jobs]
