"""Runs a command that ends with the process that started it, even after kill -9: `python -m turnwise.keeper COMMAND…`.

The starter holds the other end of the keeper's standard input. When the starter dies the system closes it, and the
keeper ends the command with all processes of its group: politely, then after a few seconds by force.
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


def main(command: Sequence[str]) -> int:
    """Run the command until it ends or the starter does; returns its exit code."""
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
