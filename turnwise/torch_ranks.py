"""Ranks that `torchrun` starts: real processes, on one machine or several.

Inside `with ranks.bound():` the ranks end together. Each has a thread that looks for trouble: what another rank
reports, and processes of this machine that are gone. The first trouble is raised in every main thread as `RankEnded`.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cache
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from turnwise.ranks import ALONE, Ranks, are_several, block

Value = TypeVar("Value")

_DEADLINE = timedelta(minutes=30)
"""How long a rank waits for the others: playing and saving may differ by minutes, but a hang must end the run."""
_LOOK_SECONDS = 0.5
_GRACE_SECONDS = 10.0
"""How long a rank may take to end by itself. The launcher kills it after 30 seconds, and would take its message too."""
_WAKE = signal.SIGURG
"""Wakes the main thread, even in a sleep or a read. Nothing else uses it, and by default it is ignored."""
_TROUBLE, _HEARD = "trouble", "heard"


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Why the ranks cannot go on."""

    text: str
    speaker: int = 0
    """The rank that tells the user."""
    code: int = 1
    """The exit code of every rank."""


class RankEnded(KeyboardInterrupt):
    """The run cannot go on because of another rank. Like a second Ctrl-C it does not wait for the step."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.text)
        self.speaker, self.code = trouble.speaker, trouble.code


@cache
def join() -> Ranks:
    """The ranks that torchrun started together with this process; `ALONE` without it."""
    if not are_several():
        return ALONE
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=_DEADLINE)
    return TorchRanks()


def own_device(device: str) -> str:
    """This rank's device: each takes a GPU of its machine."""
    if device.partition(":")[0] != "cuda" or join().size == 1:
        return device
    local, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if ":" in device:
        raise ValueError(f"device={device} names one GPU, but each rank takes its own; use device=cuda")
    if local >= there:
        raise ValueError(f"{platform.node()} has {there} GPUs, too few for its ranks; use --nproc-per-node {there}")
    return f"cuda:{local}"


class TorchRanks:
    """The ranks of the default process group. Plain values go over gloo, tensors over gloo or NCCL."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._calls = 0
        """How often this rank has met the others: who is behind keeps them waiting."""
        self.meeting_seconds = 0.0
        """Time spent meeting the others, most of it waiting for the last one."""
        self._lookout: _Lookout | None = None

    def reduce(self, values: Tensor) -> Tensor:
        """The sum over all ranks, bit-identical on each."""
        total = values.detach().clone(memory_format=torch.contiguous_format)
        with self._meeting():
            dist.all_reduce(total)
        return total

    def gather(self, value: Value) -> list[Value]:
        """Every rank's plain value, in rank order."""
        values: list[Any] = [None] * self.size
        with self._meeting():
            dist.all_gather_object(values, value)
        return values

    def broadcast(self, value: Value) -> Value:
        """Rank 0's plain value."""
        values: list[Any] = [value]
        with self._meeting():
            dist.broadcast_object_list(values)
        return values[0]

    def share(self, items: Sequence[Value]) -> list[Value]:
        """This rank's items: a contiguous block, so that the shares in rank order are the whole."""
        return block(items, self.rank, self.size)

    @contextmanager
    def bound(self) -> Iterator[None]:
        """End with the others: if one of them fails or dies, `RankEnded` is raised here."""
        places = self.gather((platform.node(), os.getpid()))
        here = {rank: pid for rank, (host, pid) in enumerate(places) if host == platform.node() and rank != self.rank}
        self._lookout = lookout = _Lookout(self.rank, here, calls=lambda: self._calls)
        with lookout:
            yield
            lookout.closing = True  # from here on a rank may end before this one
            self.gather(None)

    def report(self, text: str, *, code: int) -> bool:
        """Tell the others that this rank fails; returns whether this rank must also tell the user."""
        assert self._lookout is not None, "only inside bound()"
        return self._lookout.report(Trouble(text=f"rank {self.rank}: {text}", code=code))

    @contextmanager
    def meeting_unseen(self) -> Iterator[None]:
        """Work in which sharded layers meet those of other ranks: if it fails because one is gone, say so."""
        try:
            yield
        except RuntimeError as error:
            trouble = None if self._lookout is None else self._lookout.wait()
            if trouble is None:
                raise
            raise RankEnded(trouble) from error

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        self._calls += 1
        started = time.perf_counter()
        try:
            yield
            self.meeting_seconds += time.perf_counter() - started
        except RuntimeError as error:  # the only one that gloo and NCCL raise
            if self._lookout is None:
                raise
            raise RankEnded(self._lookout.explain(error)) from error


class _Lookout:
    """Watches over the other ranks, in a thread. What one rank says to all is in the launcher's store."""

    def __init__(self, rank: int, neighbours: dict[int, int], *, calls: Callable[[], int]) -> None:
        self.closing = False
        self._rank, self._neighbours, self._calls = rank, neighbours, calls
        self._size = dist.get_world_size()
        self._store = _connect()
        self._found: Trouble | None = None
        self._is_raised = False
        self._seen, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._look, name="turnwise-ranks", daemon=True)
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        for number in (_WAKE, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._stop)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(_GRACE_SECONDS)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def report(self, trouble: Trouble) -> bool:
        """Leave a note for the others; returns whether nobody else passes it on to the user."""
        self._done.set()
        self._post(trouble)
        return self._rank == 0 or not self._is_heard()

    def wait(self) -> Trouble | None:
        """The trouble that comes up in the next moment, if any."""
        self._is_raised = True
        return self._found if self._seen.wait(4 * _LOOK_SECONDS) else None

    def explain(self, error: RuntimeError) -> Trouble:
        """Why a meeting of the ranks failed."""
        self._is_raised = True
        if self._seen.wait(_GRACE_SECONDS) and self._found is not None:
            return self._found
        behind = [rank for rank in range(self._size) if self._calls_of(rank) < self._calls()]
        names = " and ".join(f"rank {rank}" for rank in behind) or "another rank"
        return Trouble(text=f"{names} did not answer: {error}", speaker=self._rank)

    def _look(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            if (found := self._find()) is not None:
                self._found = found
                self._seen.set()
                self._end(found)
                return

    def _find(self) -> Trouble | None:
        gone = [rank for rank, pid in self._neighbours.items() if not _is_alive(pid)]
        try:
            self._store.set(f"calls/{self._rank}", str(self._calls()))
            if self._store.check([_TROUBLE]):
                return Trouble(**json.loads(self._store.get(_TROUBLE)))
        except RuntimeError:
            if not gone:
                return None if self.closing else Trouble(text="torchrun, or the machine of rank 0, has ended")
        if not gone or self.closing:
            return None
        text = f"rank {gone[0]} has ended without a message: it was killed, or it crashed"
        trouble = Trouble(text=text, speaker=min({*range(self._size)} - {*gone}))
        self._post(trouble)  # for the ranks of other machines
        return trouble

    def _end(self, trouble: Trouble) -> None:
        """Raise it in the main thread; exit from here if that does not help soon, as while a GPU waits."""
        if self._rank == 0:
            self._post(trouble)
        signal.pthread_kill(threading.main_thread().ident or 0, _WAKE)
        if not self._done.wait(_GRACE_SECONDS):
            if trouble.speaker == self._rank:
                print(f"turnwise: {trouble.text}", file=sys.__stderr__, flush=True)
            os._exit(trouble.code)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """In the main thread: another rank's end, or a launcher that ends all ranks, perhaps because one has ended."""
        if self._is_raised:  # once is enough, a second one would cut short how this rank ends
            return
        self._is_raised = True
        self._seen.wait(2 * _LOOK_SECONDS)
        raise KeyboardInterrupt if self._found is None else RankEnded(self._found)

    def _post(self, trouble: Trouble) -> None:
        """The first trouble stays; rank 0 also lets the others know that it tells the user."""
        with suppress(RuntimeError):
            self._store.compare_set(_TROUBLE, "", json.dumps(asdict(trouble)))
            if self._rank == 0:
                self._store.set(_HEARD, "")

    def _is_heard(self) -> bool:
        try:
            self._store.wait([_HEARD], timedelta(seconds=_GRACE_SECONDS))
        except RuntimeError:
            return False
        return True

    def _calls_of(self, rank: int) -> int:
        key = f"calls/{rank}"
        with suppress(RuntimeError):
            return int(self._store.get(key)) if self._store.check([key]) else 0
        return 0


def _connect() -> PrefixStore:
    """A connection of our own to the launcher's store: the process group may be waiting on its own."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=60))
    return PrefixStore(f"turnwise/{restarts}", store)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
