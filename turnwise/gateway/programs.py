"""The user's program: a function in a thread of its own, or a command in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from math import isclose
from numbers import Real
from typing import Any, BinaryIO

from turnwise.envs.faults import EpisodeError, describe, trace_of
from turnwise.gateway.agent_session import Ended
from turnwise.keeper import GROUPS

Tell = Callable[[Ended], None]
_TAIL_BYTES = 64_000
_SHOWN = 400
_ROUNDING = 1e-3
"""How far the parts of a reward may be from it."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a program finds the model."""

    origin: str
    api_key: str

    @property
    def base_url(self) -> str:
        """What OpenAI's clients take; Anthropic's work with it too."""
        return f"{self.origin}/v1"


class RunningFunction:
    """`run(task, base_url, api_key)`, plain or async, in a thread that nothing else uses.

    A coroutine is cancelled by `stop`; a plain function that hangs is left behind, and its calls are refused.
    """

    def __init__(self, function: Callable[..., Any], task: Any, address: Address, tell: Tell) -> None:
        self._function, self._tell = function, tell
        self._arguments = {"task": task, "base_url": address.base_url, "api_key": address.api_key}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._stopped = False
        threading.Thread(target=self._run, name="turnwise-agent", daemon=True).start()

    def stop(self) -> None:
        """Cancel it, without waiting."""
        self._stopped = True
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _run(self) -> None:
        try:
            value = self._function(**self._arguments)
            if isawaitable(value):
                value = asyncio.run(self._wait(value))
            self._tell(Ended(value=value))
        except BaseException as error:  # the edge: anything that the program raises ends its own episode
            self._tell(Ended(error=_crash(error)))

    async def _wait(self, value: Any) -> Any:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._loop.set_exception_handler(_report_unless_abandoned)
        if self._stopped:
            raise asyncio.CancelledError
        return await value


def _report_unless_abandoned(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report what a task raised, unless it only tried to close a client that a program left open.

    The garbage collector finds such a client in any thread, and the client then closes itself in that thread's loop,
    although its connections belong to a loop that has ended.
    """
    error = context.get("exception")
    if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
        loop.default_exception_handler(context)


def _crash(error: BaseException) -> EpisodeError:
    if isinstance(error, EpisodeError):
        return error
    return EpisodeError(f"the program raised {describe(error)}", trace=trace_of(error))


class RunningCommand:
    """A command line: the task in TURNWISE_TASK, addresses where clients look for them, the reward on its last line."""

    def __init__(self, command: str | Sequence[str], task: Any, address: Address, tell: Tell) -> None:
        words = shlex.split(command) if isinstance(command, str) else list(command)
        self._name, self._tell = shlex.join(words), tell
        self._lock, self._reaped = threading.Lock(), False
        self._output, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 (closed in _run)
        try:
            # Its own session, so that `stop` reaches what it has started too.
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._errors,
                env={**os.environ, **_variables(task, address)},
                start_new_session=True,
            )
        except OSError as error:
            raise EpisodeError(f"cannot start {self._name}: {error}") from error
        GROUPS.add(self._process.pid)
        threading.Thread(target=self._run, name="turnwise-agent", daemon=True).start()

    def stop(self) -> None:
        """Kill it and what it has started, without waiting."""
        with self._lock, suppress(ProcessLookupError, PermissionError):
            if not self._reaped:
                os.killpg(self._process.pid, signal.SIGKILL)

    def _run(self) -> None:
        if hasattr(os, "waitid"):  # until it is reaped, nobody else can get its number
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self.stop()  # what it has left behind
        status = self._process.wait()
        with self._lock:
            self._reaped = True
        GROUPS.remove(self._process.pid)
        with self._output, self._errors:
            printed, complaints = _tail(self._output), _tail(self._errors)
        if status != 0:
            text = f"{self._name} ended with status {status}: {_last_line(complaints) or _last_line(printed)}"
            return self._tell(Ended(error=EpisodeError(text, trace=complaints[-8_000:])))
        self._tell(Ended(value=_read_line(_last_line(printed))))


def _variables(task: Any, address: Address) -> dict[str, str]:
    # Clients read either spelling, and those that read both prefer one or the other.
    excepted = ["127.0.0.1", *dict.fromkeys(os.environ.get(name, "") for name in ("NO_PROXY", "no_proxy"))]
    directly = ",".join(filter(None, excepted))
    return {
        "TURNWISE_TASK": json.dumps(task),
        "OPENAI_BASE_URL": address.base_url,
        "OPENAI_API_BASE": address.base_url,
        "OPENAI_API_KEY": address.api_key,
        "ANTHROPIC_BASE_URL": address.origin,
        "ANTHROPIC_API_KEY": address.api_key,
        "NO_PROXY": directly,
        "no_proxy": directly,
    }


def _tail(file: BinaryIO) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
    return file.read().decode("utf-8", "replace")


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")[-_SHOWN:]


def _read_line(line: str) -> Any:
    """A number or an object; anything else is shown as it is by who reads the reward."""
    try:
        return json.loads(line)
    except ValueError:
        return line


@dataclass(frozen=True, kw_only=True)
class ProgramOutcome:
    """What a program says of its episode."""

    reward: float
    success: bool | None = None
    parts: Mapping[str, float] | None = None
    scores: Mapping[str, float] | None = None

    @classmethod
    def of(cls, value: Any) -> ProgramOutcome:
        """From a number, or a mapping with `reward` and maybe `success`, `parts`, `scores`; otherwise EpisodeError."""
        row = value if isinstance(value, Mapping) else {"reward": value}
        reward, success = row.get("reward"), row.get("success")
        if isinstance(reward, Real) and isinstance(success, bool | int | None):
            with suppress(TypeError):
                parts, scores = (_numbers(row.get(key)) for key in ("parts", "scores"))
                _require_sum(parts, float(reward))
                won = None if success is None else bool(success)
                return cls(reward=float(reward), success=won, parts=parts, scores=scores)
        raise EpisodeError(
            f"the program ended with {_short(value)}; return the reward as a number, or "
            '{"reward": 1.0, "success": True, "parts": {"right": 0.8, "format": 0.2}}'
        )


def _numbers(table: Any) -> dict[str, float] | None:
    """Numbers by name; TypeError for anything else."""
    if table is None:
        return None
    if not isinstance(table, Mapping) or not all(isinstance(each, Real) for each in table.values()):
        raise TypeError("not numbers by name")
    return {str(name): float(each) for name, each in table.items()}


def _require_sum(parts: Mapping[str, float] | None, reward: float) -> None:
    if parts is None:
        return
    total = sum(parts.values())
    if not isclose(total, reward, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
        raise EpisodeError(
            f"the program's parts add up to {total:g}, and its reward is {reward:g}; "
            "return parts that add up to the reward, each with its weight in it"
        )


def _short(value: Any) -> str:
    text = "nothing" if value is None or value == "" else repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
