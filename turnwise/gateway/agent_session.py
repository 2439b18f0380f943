"""One episode's side of the endpoint: calls queue up, the episode answers them one after the other.

Three threads meet here: the program's, the server's and the episode's. So everything is behind one lock, and whoever
waits waits for a future.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from turnwise.dialects.asgi import RefusedError
from turnwise.dialects.dialect import Answered, Asked
from turnwise.dialects.model_call import ModelCall
from turnwise.envs.faults import EpisodeError

MODEL = "policy"
"""The name under which the model is offered; calls may use any."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The program is over: what it returned, or how it failed."""

    value: Any = None
    error: EpisodeError | None = None


@dataclass(frozen=True, kw_only=True)
class _Open:
    asked: Asked
    answer: Future[Answered]


@dataclass(kw_only=True, eq=False)
class AgentSession:
    """The calls of one program. Its key names it: the program's client sends it as its API key."""

    most_open: int = 256
    """Calls that may wait at once."""
    key: str = field(default_factory=lambda: f"turnwise-{secrets.token_urlsafe(18)}")
    ignored: dict[str, Any] = field(default_factory=dict[str, Any])
    """What calls asked for and did not get, because sampling is pinned to the recipe's."""
    retries: int = 0
    """Calls that came again and got the answer of the first."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: deque[_Open] = field(default_factory=deque[_Open])
    _current: _Open | None = None
    _reader: Future[ModelCall | Ended] | None = None
    _shown: int = 0
    _ended: Ended | None = None
    _closed: str = ""
    _known: dict[str, Future[Answered]] = field(default_factory=dict[str, "Future[Answered]"])

    # The server's side.

    def ask(self, asked: Asked, *, body_key: str, again: bool) -> Future[Answered]:
        """The answer to a call, once there is one; `again`: a retry, which gets the answer of the first attempt."""
        with self._lock:
            if self._closed:
                raise RefusedError(403, self._closed)
            known = self._known.get(body_key)
            if again and known is not None:
                self.retries += 1
                return known
            if len(self._waiting) >= self.most_open:
                raise RefusedError(400, f"{self.most_open} calls of this episode wait already; make fewer at once")
            call = _Open(asked=asked, answer=_future())
            self._known[body_key] = call.answer
            self._note(asked)
            self._waiting.append(call)
            self._show()
            return call.answer

    # The program's side.

    def end(self, ended: Ended) -> None:
        """The program is over; calls that it left behind are not answered."""
        with self._lock:
            if self._ended is None:
                self._ended = ended
                self._drop(self._waiting, "the program has ended")
                self._show()

    # The episode's side.

    def next(self) -> Future[ModelCall | Ended]:
        """The next call, or the end of the program."""
        with self._lock:
            self._reader = _future()
            reader = self._reader
            self._show()
            return reader

    def answer(self, answered: Answered) -> None:
        """Answer the current call."""
        with self._lock:
            current, self._current = self._current, None
            self._show()
        if current is not None and not current.answer.done():
            current.answer.set_result(answered)

    def close(self, why: str) -> None:
        """Refuse all calls from now on."""
        with self._lock:
            if self._closed:
                return
            self._closed = why
            self._drop([*([self._current] if self._current else []), *self._waiting], why)
            self._waiting.clear()
            self._known.clear()

    def _show(self) -> None:
        """Hand the next event to a reader. The end comes first: nobody waits for the calls that are left."""
        if self._reader is None or self._current is not None:
            return
        if self._ended is not None:
            reader, self._reader = self._reader, None
            reader.set_result(self._ended)
        elif self._waiting:
            reader, self._reader, self._current = self._reader, None, self._waiting.popleft()
            reader.set_result(ModelCall(number=self._shown, asked=self._current.asked))
            self._shown += 1

    def _drop(self, calls: Iterable[_Open], why: str) -> None:
        for call in calls:
            if not call.answer.done():
                call.answer.set_exception(RefusedError(403, why))

    def _note(self, asked: Asked) -> None:
        for name in ("temperature", "top_p", "top_k", "min_p", "seed"):
            if (value := getattr(asked, name)) is not None:
                self.ignored[name] = value
        if asked.tool_choice not in ("auto", "none"):
            self.ignored["tool_choice"] = asked.tool_choice
        for name in asked.unmet:
            self.ignored[name] = True


def _future() -> Future[Any]:
    """One that nobody can cancel: those who no longer wait for it must not disturb others."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future
