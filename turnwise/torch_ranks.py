"""Ranks that `torchrun` starts: real processes, on one machine or several."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from turnwise.ranks import ALONE, Ranks, block

Value = TypeVar("Value")

_DEADLINE = timedelta(minutes=30)
"""How long a rank waits for the others: playing and saving differ by minutes, a rank that hangs must be noticed."""


@cache
def join() -> Ranks:
    """The ranks that torchrun started together with this process; `ALONE` without it."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return ALONE
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=_DEADLINE)
    return TorchRanks()


def own_device(device: str) -> str:
    """This rank's device: of the GPUs of a machine every rank takes its own."""
    if device.partition(":")[0] != "cuda" or join().size == 1:
        return device
    local, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if ":" in device:
        raise ValueError(f"device={device} names one GPU, but several ranks take one each; use device=cuda")
    if local >= there:
        raise ValueError(f"this machine has {there} GPUs, too few for its ranks; use --nproc-per-node {there}")
    return f"cuda:{local}"


class TorchRanks:
    """The ranks of the default process group: tensors and plain values go over gloo or NCCL, wherever they are."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def reduce(self, values: Tensor) -> Tensor:
        """The sum over all ranks, bit-identical on each."""
        total = values.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    def gather(self, value: Value) -> list[Value]:
        """Every rank's plain value, in rank order."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def broadcast(self, value: Value) -> Value:
        """Rank 0's plain value."""
        values: list[Any] = [value]
        dist.broadcast_object_list(values)
        return values[0]

    def share(self, items: Sequence[Value]) -> list[Value]:
        """This rank's items: a contiguous block, so that the shares in rank order are the whole."""
        return block(items, self.rank, self.size)
