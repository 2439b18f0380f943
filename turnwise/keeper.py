"""Runs a command that ends with the process that started it, even after kill -9: `python -m turnwise.keeper COMMAND…`.

The starter holds the other end of the keeper's standard input. When the starter dies the system closes it, and the
keeper ends the command with all processes of its group: politely, then after a few seconds by force.

`GROUPS` does the same for many short-lived commands: one process for all of them, which ends them at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import IO, Any

GRACE = 10.0
"""Seconds that a command has to end by itself."""
_OF_GROUPS = "--groups"


def keep(
    command: Sequence[str],
    *,
    output: IO[Any] | int | None = None,
    env: Mapping[str, str] | None = None,
    folder: str | None = None,
    text: bool = False,
) -> subprocess.Popen[Any]:
    """Start a command under a keeper. Closing `stdin` of the process ends it; a signal to it is passed on."""
    return subprocess.Popen(
        [sys.executable, "-m", "turnwise.keeper", *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        env=None if env is None else {**env},
        cwd=folder,
        text=text,
    )


class KeptGroups:
    """Process groups that end with this process, even after kill -9."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._keeper: subprocess.Popen[str] | None = None

    def add(self, group: int) -> None:
        """From now on it ends with this process."""
        with self._lock:
            self._groups.add(group)
            if self._keeper is None or self._keeper.poll() is not None:
                command = [sys.executable, "-m", "turnwise.keeper", _OF_GROUPS]
                # Its own session: it must outlive whatever ends this process.
                self._keeper = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True
                )
                self._tell(*(f"+{each}" for each in self._groups))
            else:
                self._tell(f"+{group}")

    def remove(self, group: int) -> None:
        """It has ended, and its number may become another's."""
        with self._lock:
            self._groups.discard(group)
            self._tell(f"-{group}")

    def _tell(self, *lines: str) -> None:
        if self._keeper is not None and self._keeper.stdin is not None:
            with suppress(BrokenPipeError):
                self._keeper.stdin.write("".join(f"{line}\n" for line in lines))
                self._keeper.stdin.flush()


GROUPS = KeptGroups()
"""Those of this process."""


def _keep_groups() -> int:
    """Note who starts and ends until the starter is gone; then end who is left."""
    left: set[int] = set()
    for line in sys.stdin:
        (left.add if line.startswith("+") else left.discard)(int(line[1:]))
    for group in left:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    return 0


def main(command: Sequence[str]) -> int:
    """Run the command until it ends or the starter does; returns its exit code."""
    if command == [_OF_GROUPS]:
        return _keep_groups()
    started, early = list[subprocess.Popen[Any]](), list[int]()

    def pass_on(number: int, _: FrameType | None) -> None:
        early.append(number)
        for child in started:
            _signal(child, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    started.append(child)
    for number in early:
        _signal(child, number)
    threading.Thread(target=_end_with_starter, args=(child,), daemon=True).start()
    code = child.wait()
    _signal(child, signal.SIGKILL)  # what it left behind
    return code if code >= 0 else 128 - code


def _end_with_starter(child: subprocess.Popen[Any]) -> None:
    while os.read(0, 4096):  # empty once the starter has closed it or is dead
        pass
    _signal(child, signal.SIGTERM)
    until = time.monotonic() + GRACE
    while child.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    _signal(child, signal.SIGKILL)


def _signal(child: subprocess.Popen[Any], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
