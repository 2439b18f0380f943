"""Jobs in a few long-lived parallel processes: one that fails or is killed does not affect the others.

Hundreds of short runs must not each wait for torch to load, so a process runs many jobs. It ends with the study,
however the study ends. A job that is asked to stop gets time to save.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from turnwise.study.jobs import INTERRUPTED, Job
from turnwise.trust import is_trusting, trusting
from turnwise.words import counted

Perform = Callable[[Job], str]
"""Completes a job in a separate process and returns what went wrong."""


class Queue(Protocol):
    """The remaining jobs, in order."""

    def take(self) -> Job | None:
        """The first job that can begin now; None if there is none."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[str]:
        """The names of the waiting jobs."""
        ...


_JOBS_PER_PROCESS = 50
_END_SECONDS = 20
"""How long an idle process may take to end by itself."""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Small models gain nothing from more threads, and results must not depend on how many jobs run in parallel."""


def run_jobs(
    queue: Queue,
    perform: Perform,
    *,
    jobs: int,
    report: Callable[[str], None],
    deadline: float | None = None,
) -> dict[str, str]:
    """Run the queue, `jobs` in parallel; returns what went wrong by name. No job starts after the deadline.

    Ctrl-C or SIGTERM asks running jobs to stop, waits until they have saved, and raises KeyboardInterrupt; a second one
    kills them.
    """
    faults = dict[str, str]()
    with _terminable(), _Crew(perform) as crew:
        while True:
            while len(crew.busy) < jobs and not _is_past(deadline) and (job := queue.take()):
                crew.begin(job)
            if not crew.busy:
                break
            for job, fault in crew.collect():
                left = f"{len(queue) + len(crew.busy)} to go"
                report(f"{job.name}: {fault} ({left}; log {job.log})" if fault else f"{job.name}: complete ({left})")
                if fault:
                    faults[job.name] = fault
    if len(queue) and _is_past(deadline):
        report(f"the time is up; {counted(len(queue), 'run')} left")
    elif len(queue):
        faults |= dict.fromkeys(queue, "what it starts from failed, or was interrupted")
    return faults


def _is_past(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline


@contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM, as sent by a job scheduler, as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Crew:
    """The processes of a study; none of them outlives the block."""

    def __init__(self, perform: Perform) -> None:
        self._perform = perform
        self.busy: list[_Worker] = []
        self._idle: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            for worker in self.busy:
                worker.interrupt()
            while self.busy:
                self.collect()
        finally:
            for worker in (*self.busy, *self._idle):
                worker.dismiss()
            for worker in (*self.busy, *self._idle):
                worker.end()

    def begin(self, job: Job) -> None:
        """Start a job in an idle process or a new one."""
        worker = self._idle.pop() if self._idle else _Worker(self._perform)
        self.busy.append(worker)
        worker.begin(job)

    def collect(self) -> list[tuple[Job, str]]:
        """Wait until a job ends; returns all ended jobs with what went wrong."""
        ready = wait([worker.pipe for worker in self.busy])
        ended = [worker for worker in self.busy if worker.pipe in ready]
        outcomes: list[tuple[Job, str]] = []
        for worker in ended:
            outcomes.append(worker.outcome())
            self.busy.remove(worker)
            if worker.is_spent:
                worker.end()
            else:
                self._idle.append(worker)
        return outcomes


class _Worker:
    """A process that runs one job after another, and our end of its pipe."""

    def __init__(self, perform: Perform) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, perform, is_trusting()))
        with _environment(_ONE_THREAD):
            self._process.start()
        theirs.close()
        self._begun, self._busy, self._died = list[Job](), False, False

    def begin(self, job: Job) -> None:
        """Send a job."""
        self._begun.append(job)
        self._busy = True
        with suppress(BrokenPipeError):  # killed while idle; `outcome` reports it
            self.pipe.send(job)

    def outcome(self) -> tuple[Job, str]:
        """The job that ended and what went wrong, once the pipe is readable."""
        job, self._busy = self._begun[-1], False
        try:
            return job, self.pipe.recv_bytes().decode()
        except (EOFError, ConnectionResetError):
            self._died = True
            self._process.join()
        code = self._process.exitcode
        if code == -signal.SIGKILL:
            return job, "its process was killed, most likely for its memory; call again, with fewer --jobs"
        return job, f"exit code {code}: {_last_line(job.log)}"

    @property
    def is_spent(self) -> bool:
        """Whether it takes no more jobs: limits memory leaks in libraries."""
        return self._died or len(self._begun) >= _JOBS_PER_PROCESS

    def interrupt(self) -> None:
        """Ask the job to save and stop."""
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, signal.SIGINT)

    def dismiss(self) -> None:
        """Close the pipe of an idle process, so that it ends."""
        self.pipe.close()

    def end(self) -> None:
        """Wait for the process to end; kills one that is still on a job."""
        self.dismiss()
        if not self._busy:
            self._process.join(_END_SECONDS)
        self._process.kill()
        self._process.join()


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(orders: Connection, perform: Perform, trusts: bool) -> None:
    """The main loop of a process."""
    os.setsid()  # Ctrl-C in the terminal reaches only the study, which passes it on once
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    with trusting(trusts), suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        while True:
            job: Job = orders.recv()
            _write_to(job.log)
            orders.send_bytes(_outcome(job, perform).encode())


def _outcome(job: Job, perform: Perform) -> str:
    try:
        return perform(job)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ValueError as error:
        return str(error)


def _stop_with_parent() -> None:
    """Stop when the parent dies: a killed study cannot ask its processes to stop."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGINT)


def _write_to(log: Path) -> None:
    """Send all output of this process to the job's log, stack traces included."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.is_file() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")
