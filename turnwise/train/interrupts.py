"""Safe Ctrl-C: the first asks the run to finish its step and save, the second ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class Interrupts:
    """Notices SIGINT and SIGTERM: `with Interrupts(print) as interrupts: ... if interrupts.requested: ...`.

    Several ranks take no note: their launcher also interrupts those that are left when one has died.
    """

    def __init__(self, note: Callable[[str], None] | None) -> None:
        self.requested = False
        self._note = note
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # only the main thread gets signals
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._notice)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _notice(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        if self._note is not None:
            self._note("finishing this step, then saving; once more stops at once")
