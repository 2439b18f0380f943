"""A deadline for inline code: the operating system's alarm interrupts it, even in a sleep or a read."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from turnwise.envs.faults import EpisodeError

_REPEAT_SECONDS = 1.0
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGURG)
"""The last one stops a rank when another has ended (`turnwise/torch_ranks.py`)."""


class _Ring(BaseException):
    """Not an Exception, so that an environment's own `except Exception` does not mistake it for a failing tool."""


def can_interrupt() -> bool:
    """Whether an alarm works here: signals reach only the main thread."""
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise an EpisodeError if the block takes longer than `seconds`; an earlier alarm resumes afterwards."""

    def ring(*_: object) -> None:
        raise _Ring

    started, handler = time.monotonic(), signal.signal(signal.SIGALRM, ring)
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_SECONDS)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # it may fire even before this line: hence the second one below
    except _Ring:
        raise EpisodeError(f"no answer within {seconds:g} s", timed_out=True) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if outer:
            signal.setitimer(signal.ITIMER_REAL, max(outer - (time.monotonic() - started), 1e-6))


@contextmanager
def noticing_stops() -> Iterator[list[int]]:
    """The signals that ask the program to stop, as they arrive in the block; their handlers run as usual.

    If there is one, an interrupt or exit raised in the block is the user's; otherwise the block raised it itself.
    """
    arrived: list[int] = []
    handlers = {int(number): handler for number in _STOPS if callable(handler := signal.getsignal(number))}

    def notice(number: int, frame: FrameType | None) -> Any:
        arrived.append(number)
        return handlers[number](number, frame)

    for number in handlers:
        signal.signal(number, notice)
    try:
        yield arrived
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
