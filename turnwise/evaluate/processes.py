"""Commands in processes of their own, so many at once: one that fails, or is killed, takes no other with it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_LOOK_SECONDS = 0.1
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Small models gain nothing from more threads, and the result must not depend on how many run side by side."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One command and the file that its output is added to."""

    name: str
    command: Sequence[str]
    log: Path


def run_jobs(jobs: Iterable[Job], *, at_once: int, done: Callable[[Job, str], None]) -> bool:
    """Run all jobs and call `done(job, fault)` after each, the fault empty when it went well.

    Ctrl-C asks those that run to stop, waits for them and starts no more: the answer is then False. A second one kills
    them.
    """
    waiting, running = deque(jobs), dict[subprocess.Popen[bytes], Job]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                _start(waiting.popleft(), running, done)
            _collect(running, done)
            time.sleep(_LOOK_SECONDS if running else 0)
    except KeyboardInterrupt:
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            process.wait()  # until its step is done and saved; the user's second Ctrl-C is the deadline
        return False
    finally:
        for process in running:
            process.kill()
    return True


def _start(job: Job, running: dict[subprocess.Popen[bytes], Job], done: Callable[[Job, str], None]) -> None:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        try:
            # The process inherits the lock with its output, so it is held for as long as anyone writes there.
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            done(job, "another process is at it; wait for that one, or end it")
            return
        process = subprocess.Popen(
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ONE_THREAD},
            start_new_session=True,  # a Ctrl-C in the terminal reaches us alone, and we pass it on once
        )
    running[process] = job


def _collect(running: dict[subprocess.Popen[bytes], Job], done: Callable[[Job, str], None]) -> None:
    for process in [process for process in running if process.poll() is not None]:
        job = running.pop(process)
        done(job, "" if process.returncode == 0 else f"exit code {process.returncode}: {_last_line(job.log)}")


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
