"""A deadline for code that runs right here: the operating system's alarm interrupts it, even in a sleep or a read."""

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
_STOPS = (signal.SIGINT, signal.SIGTERM)


class _Ring(BaseException):
    """Not an Exception, so that an environment's own `except Exception` does not take it for a failing tool."""


def can_interrupt() -> bool:
    """Whether an alarm works here: signals reach the main thread only."""
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise an EpisodeError when the block takes longer than `seconds`; an alarm that was set before goes on after."""

    def ring(*_: object) -> None:
        raise _Ring

    started, handler = time.monotonic(), signal.signal(signal.SIGALRM, ring)
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_SECONDS)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # it may ring even before this line: hence the second below
    except _Ring:
        raise EpisodeError(f"no answer within {seconds:g} s", timed_out=True) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if outer:
            signal.setitimer(signal.ITIMER_REAL, max(outer - (time.monotonic() - started), 1e-6))


@contextmanager
def noticing_stops() -> Iterator[list[int]]:
    """The signals that ask the program to stop, as they arrive in the block; their handlers run as ever.

    With one of them, an interrupt or exit that the block raises is the user's; without, the block made it itself.
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
