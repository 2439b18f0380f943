"""An environment in a separate process: for those that compute, and for those that may have to be killed.

A worker is a bare interpreter that imports the environment and nothing else of ours (never torch), and serves one
episode at a time. It is started directly, not through `multiprocessing`, which would import the user's script again.

Requests are pickled: we make them, and the worker runs whatever environment we name anyway. Answers are plain data
(`codec`): the worker ran a user's code, so nothing that it sends is unpickled.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import isawaitable
from multiprocessing.connection import Connection
from typing import Any

from turnwise.envs import codec
from turnwise.envs.base import Env
from turnwise.envs.faults import EpisodeError, fault_of
from turnwise.envs.foreign import adapted
from turnwise.envs.registry import EnvSpec, add, check, check_arguments, find, make
from turnwise.envs.wrappers.named import Choice, check_wrappers, wrap

STOP = b""
_STOP_SECONDS = 1.0
_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve({descriptor})"


@dataclass(frozen=True, kw_only=True)
class EnvSource:
    """How to build an environment: `EnvSource(env="search/geo-2hop", kwargs={"split": "test"})`, or with a factory."""

    env: str | Callable[..., Env]
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    wrappers: Sequence[Choice] = ()
    """What is put around it, from the inside out: `({"kind": "turn-limit", "max_turns": 8},)`."""

    @property
    def name(self) -> str:
        """The id, or the name of the factory."""
        return self.env if isinstance(self.env, str) else getattr(self.env, "__qualname__", repr(self.env))

    @property
    def spec(self) -> EnvSpec | None:
        """The registration for an id; ValueError for unknown ids."""
        return find(self.env)[0] if isinstance(self.env, str) else None

    def check(self) -> None:
        """ValueError for an unknown id or wrapper or wrong arguments; builds nothing."""
        check_wrappers(self.wrappers)
        if isinstance(self.env, str):
            check(self.env, self.kwargs)
        else:
            check_arguments(self.name, self.env, self.kwargs)

    def build(self) -> Env:
        """A new instance."""
        env = make(self.env, **self.kwargs) if isinstance(self.env, str) else adapted(self.env(**self.kwargs))
        return wrap(env, self.wrappers)


def start_interpreter(module: str) -> tuple[subprocess.Popen[bytes], Connection]:
    """A bare interpreter that finds the modules this one finds and runs `serve(descriptor)` of the named one."""
    ours, theirs = socket.socketpair()
    program = _PROGRAM.format(path=search_path(), module=module, descriptor=theirs.fileno())
    with theirs:
        # Its own session: Ctrl-C in the terminal is ours to handle, and killing it kills its children too.
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    return process, Connection(ours.detach())


def search_path() -> list[str]:
    """Where this interpreter looks for modules, for one that may run in another folder."""
    return [os.path.abspath(entry) for entry in sys.path]


class WorkerProcess:
    """One worker as seen from here. Calls block; the owner runs them in a thread and kills the worker if it hangs."""

    def __init__(self) -> None:
        self._process, self._connection = start_interpreter(__name__)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the worker is still running."""
        return self._process.poll() is None

    def build(self, source: EnvSource) -> None:
        """Replace the worker's environment with a new one."""
        # Send the registration too: the user's script may have made it, and the worker never ran that script.
        self._request("build", source.spec, source)

    def run(self, function: Callable[[Env], Any]) -> Any:
        """`function(env)` in the worker; EpisodeError if it raised there or the worker died."""
        return self._request("run", function)

    def _request(self, *request: Any) -> Any:
        message = _dump(request)
        try:
            self._connection.send_bytes(message)
            reply = self._connection.recv_bytes(codec.MAX_BYTES)
        except (EOFError, OSError) as error:
            raise EpisodeError(self._lost_because(error)) from error
        answer, error, trace = _read_reply(reply)
        if error:
            raise EpisodeError(error, trace=trace)
        return answer

    def _lost_because(self, error: Exception) -> str:
        status = self._exit_status()
        if status is not None:
            return f"the environment's process died (exit status {status})"
        self.kill()  # what it sends from now on answers no request
        return f"the environment's process broke the connection or sent more than {codec.MAX_BYTES:,} bytes: {error}"

    def _exit_status(self) -> int | None:
        try:
            return self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def ask_to_stop(self) -> None:
        """Tell the worker to stop, without waiting."""
        with suppress(OSError):
            self._connection.send_bytes(STOP)

    def stop(self) -> None:
        """Stop the worker, kill it if needed, and wait for it."""
        self.ask_to_stop()
        self._exit_status()
        self.kill()
        self._exit_status()

    def kill(self) -> None:
        """Kill the worker and its children, without waiting. A waiting caller gets an EpisodeError."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _dump(request: tuple[Any, ...]) -> bytes:
    factory = request[-1].env if isinstance(request[-1], EnvSource) else None
    advice = "move it to the top level of a module that can be imported, or use execution='thread'"
    if getattr(factory, "__module__", "") == "__main__":
        raise EpisodeError(f"a worker process cannot see {factory!r}, which is defined in the running script; {advice}")
    try:
        return pickle.dumps(request)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise EpisodeError(f"cannot send this to a worker process ({error}); {advice}") from error


def serve(descriptor: int) -> None:
    """The worker's main loop: answer requests until told to stop or until the other side is gone."""
    connection, env = Connection(descriptor), Env()
    with asyncio.Runner() as runner:
        while (request := receive(connection)) != STOP:
            try:
                kind, *content = pickle.loads(request)
                if kind == "build":
                    env, answer = _build(*content), None
                else:
                    answer = _finish(runner, content[0](env))
                reply = codec.encode((answer, "", ""))
            except BaseException as error:  # the edge: anything the environment raises becomes a value
                fault = fault_of(error)
                reply = codec.encode((None, str(fault), fault.trace))
            connection.send_bytes(reply)


def _read_reply(reply: bytes) -> tuple[Any, str, str]:
    """The answer, or an error and its stack trace."""
    try:
        answer, error, trace = codec.decode(reply)
    except (ValueError, TypeError) as damage:
        raise EpisodeError(f"the environment's process sent something that is not an answer: {damage}") from damage
    return answer, str(error), str(trace)


def receive(connection: Connection) -> bytes:
    """The next message; `STOP` once the other side is gone."""
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):
        return STOP


def _build(spec: EnvSpec | None, source: EnvSource) -> Env:
    if spec is not None:
        add(spec)
    return source.build()


def _finish(runner: asyncio.Runner, answer: Any) -> Any:
    async def wait() -> Any:
        return await answer

    return runner.run(wait()) if isawaitable(answer) else answer
