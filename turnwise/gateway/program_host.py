"""The process in which programs run, so that their clients and the trainer do not wait for the same interpreter.

There is one for all programs that this process has started by name. Each has a thread of its own there. What we send
is pickled; what comes back is plain data, because the other side has run a user's code.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from io import TextIOWrapper
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

from turnwise.envs import codec
from turnwise.envs.faults import EpisodeError
from turnwise.envs.process import STOP, receive, search_path, start_interpreter
from turnwise.gateway.agent_session import Ended
from turnwise.gateway.late_certificates import read_certificates_late
from turnwise.gateway.programs import Address, RunningFunction, Tell
from turnwise.keeper import GROUPS
from turnwise.outside import anywhere, load


class HostedProgram:
    """`my_agent.py:run` in the process of the programs: the counterpart of `RunningFunction` in this one."""

    def __init__(self, place: str, task: Any, address: Address, tell: Tell) -> None:
        self._host = _host()
        self._number = self._host.start(place, task, address, tell)

    def stop(self) -> None:
        """Cancel it, without waiting."""
        self._host.stop(self._number)


class _Host:
    """The process of the programs as seen from here."""

    def __init__(self) -> None:
        self._process, self._connection = start_interpreter(__name__)
        GROUPS.add(self._process.pid)
        self._lock, self._numbers = threading.Lock(), count()
        self._running: dict[int, Tell] = {}
        self._over = ""
        threading.Thread(target=self._listen, name="turnwise-programs", daemon=True).start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def start(self, place: str, task: Any, address: Address, tell: Tell) -> int:
        """Run a program; `tell` is called at its end, or at the end of the process."""
        number = next(self._numbers)
        try:
            message = pickle.dumps(("start", number, anywhere(place), search_path(), task, address))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise EpisodeError(f"cannot send this task to the process of the programs: {error}") from error
        with self._lock:
            if self._over:
                raise EpisodeError(self._over)
            self._running[number] = tell
        self._send(message)
        return number

    def stop(self, number: int) -> None:
        """Cancel a program unless it has ended."""
        with self._lock:
            ended = self._running.pop(number, None) is None
        if not ended:
            self._send(pickle.dumps(("stop", number)))

    def _send(self, message: bytes) -> None:
        with self._lock, suppress(OSError):  # if it has died, `_listen` tells those who wait
            self._connection.send_bytes(message)

    def _listen(self) -> None:
        with suppress(EOFError, OSError, ValueError, TypeError):  # it has ended, or a program writes in its place
            while True:
                self._pass_on(*codec.decode(self._connection.recv_bytes(codec.MAX_BYTES)))
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        GROUPS.remove(self._process.pid)
        with self._lock:
            self._over = f"the process in which all programs run has ended (exit status {status})"
            left, self._running = self._running, {}
        for tell in left.values():
            tell(Ended(error=EpisodeError(self._over)))

    def _pass_on(self, number: int, value: Any, error: str, trace: str) -> None:
        with self._lock:
            tell = self._running.pop(number, None)
        if tell is not None:
            tell(Ended(error=EpisodeError(error, trace=trace)) if error else Ended(value=value))


_hosts: list[_Host] = []
_starting = threading.Lock()


def _host() -> _Host:
    """The process of the programs; a new one if it has died."""
    with _starting:
        if not _hosts or not _hosts[-1].alive:
            _hosts[:] = [_Host()]
        return _hosts[-1]


def serve(descriptor: int) -> None:
    """The other side: run what is asked for until told to stop or until whoever asks is gone."""
    connection, lock = Connection(descriptor), threading.Lock()
    running: dict[int, RunningFunction] = {}

    def tell(number: int, ended: Ended) -> None:
        with lock:
            running.pop(number, None)
            connection.send_bytes(_report(number, ended))

    read_certificates_late()
    if isinstance(sys.stdout, TextIOWrapper):  # None where it is closed
        sys.stdout.reconfigure(line_buffering=True)  # what programs print is seen at once, and not lost at the end
    while (request := receive(connection)) != STOP:
        kind, number, *content = pickle.loads(request)
        with lock:
            if kind == "start":
                place, path, task, address = content
                running[number] = RunningFunction(partial(_run, place, path), task, address, partial(tell, number))
            elif number in running:
                running.pop(number).stop()
    os._exit(0)  # programs that hang are not waited for


def _report(number: int, ended: Ended) -> bytes:
    if ended.error is not None:
        return codec.encode((number, None, str(ended.error), ended.error.trace))
    try:
        return codec.encode((number, ended.value, "", ""))
    except ValueError as error:
        return codec.encode((number, None, f"what the program returned cannot be sent: {error}", ""))


def _run(place: str, path: Sequence[str], **arguments: Any) -> Any:
    sys.path += [entry for entry in path if entry not in sys.path]
    return load(place)(**arguments)
