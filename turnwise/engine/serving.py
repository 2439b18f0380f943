"""The built-in engine behind the engine contract: a thread of its own drives it, coroutines wait for their turns."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from turnwise.engine.contract import Completion, SamplingParams
from turnwise.engine.torch_engine import TorchEngine

Value = TypeVar("Value")
_STOPPED = "the engine has stopped"
_PATIENCE = 600.0
"""Seconds that one step of the engine may take before whoever waits for it gives up."""


@dataclass(frozen=True, kw_only=True)
class _Posted:
    """Something for the thread to do that leads to an answer."""

    answer: Future[Any]
    work: Callable[[], None]
    close: str = ""
    """The session to be forgotten, if that is what is to be done."""
    generate: str = ""
    """The session to be continued, if that is what is to be done."""

    @property
    def order(self) -> tuple[str, str]:
        """Sessions are closed before others are continued, each by name."""
        return self.generate, self.close


class EngineServer:
    """Serves many episodes at once; each waits only for its own tokens.

    The engine samples from the learner's own weights, so hold it still while they change:

        with EngineServer(TorchEngine(policy.model, tokenizer=policy.tokenizer)) as engine:
            completion = await engine.generate("geo-17/0", [1, 5, 6], SamplingParams(max_tokens=16))
            with engine.paused():
                optimizer.step()
            engine.publish(1)
    """

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine
        self._inbox: queue.SimpleQueue[_Posted | None] = queue.SimpleQueue()
        self._unanswered: set[Future[Any]] = set()
        self._expected: int | None = None
        self._held: list[_Posted] = []
        self._generating = 0
        self.busy_seconds = 0.0
        """Time spent running the model."""
        self._door = threading.Lock()
        self._open = True
        self._reason = _STOPPED
        self._thread = threading.Thread(target=self._drive, name="turnwise-engine", daemon=True)
        self._thread.start()

    def __enter__(self) -> EngineServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    @property
    def capacity(self) -> int:
        """Tokens that a session may hold."""
        return self._engine.capacity

    async def generate(self, session: str, new_ids: Sequence[int], params: SamplingParams) -> Completion:
        """Append tokens to a session and sample its continuation. Cancelling the call closes the session."""
        answer: Future[Completion] = Future()
        submit = partial(self._submit, session, new_ids, params, answer)
        self._post(_Posted(answer=answer, work=submit, generate=session))
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            self.close(session)
            raise

    def publish(self, version: int, *, recompute: bool = False) -> None:
        """The weights have changed; returns when everything sampled from now on carries the new version."""
        self._call(lambda: self._engine.publish(version, recompute=recompute))

    def close(self, session: str) -> None:
        """Forget a session; on a stopped engine there is none left."""
        answer: Future[None] = Future()
        with self._door:
            if self._open:
                forget = lambda: answer.set_result(self._engine.close(session))  # noqa: E731
                self._inbox.put(_Posted(answer=answer, work=forget, close=session))

    def expect(self, requests: int | None) -> None:
        """Lock-step: sample only while this many requests wait for tokens, and take them up in order of their names.

        Then which sessions share a batch, and with it every rounding error, no longer depends on timing. None ends it.
        """
        answer: Future[None] = Future()
        self._post(_Posted(answer=answer, work=lambda: answer.set_result(setattr(self, "_expected", requests))))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the engine between two steps: nothing is sampled while the weights or adapters change."""
        still, go_on = threading.Event(), threading.Event()
        answer: Future[None] = Future()

        def hold() -> None:
            still.set()
            go_on.wait()
            answer.set_result(None)

        answer.add_done_callback(lambda _: still.set())  # also when the engine dies before it comes to this
        self._post(_Posted(answer=answer, work=hold))
        if not still.wait(timeout=_PATIENCE):
            raise RuntimeError(f"the engine did not come to rest within {_PATIENCE:g} s")
        if answer.done():
            answer.result()  # raises what ended the engine
        try:
            yield
        finally:
            go_on.set()

    def counts(self) -> dict[str, int]:
        """Tokens run and sampled so far."""
        return self._call(lambda: dict(self._engine.counts))

    def shutdown(self) -> None:
        """End the thread; requests still waiting fail."""
        with self._door:
            self._open = False
            self._inbox.put(None)
        self._thread.join(timeout=60)

    def _submit(self, session: str, new_ids: Sequence[int], params: SamplingParams, answer: Future[Completion]) -> None:
        def done(completion: Completion) -> None:
            self._generating -= 1
            answer.set_result(completion)

        self._engine.submit(session, new_ids, params, done)
        self._generating += 1

    def _post(self, item: _Posted) -> None:
        """Have the thread do some work that leads to an answer."""
        with self._door:
            if not self._open:
                raise RuntimeError(self._reason)
            self._inbox.put(item)

    def _call(self, work: Callable[[], Value]) -> Value:
        """Run something on the engine's thread and wait for it."""
        answer: Future[Value] = Future()
        self._post(_Posted(answer=answer, work=lambda: answer.set_result(work())))
        return answer.result(timeout=_PATIENCE)

    def _drive(self) -> None:
        """Serve until told to stop: sleep when there is nothing to do, step otherwise."""
        busy = False
        try:
            while self._receive(wait=not busy):
                busy = self._is_complete() and self._step()
        except Exception as error:  # the edge of the thread: everybody who waits is told why
            self._reason = f"{_STOPPED}: {type(error).__name__}: {error}"
        finally:
            with self._door:  # nobody posts any more: whoever still waits is told
                self._open = False
                while not self._inbox.empty():
                    posted = self._inbox.get()
                    self._unanswered |= set() if posted is None else {posted.answer}
            for answer in self._unanswered | {item.answer for item in self._held}:
                if not answer.done():
                    answer.set_exception(RuntimeError(self._reason))

    def _step(self) -> bool:
        started = time.perf_counter()
        busy = self._engine.step()
        self.busy_seconds += time.perf_counter() - started
        # In lock-step an ended request leaves a gap that the next one must fill before anything else is sampled.
        return busy and self._is_complete()

    def _is_complete(self) -> bool:
        """Whether everybody who is expected waits for tokens."""
        return self._expected is None or self._generating >= self._expected

    def _receive(self, *, wait: bool) -> bool:
        """Do what was posted; False when told to stop."""
        posted = [self._inbox.get()] if wait else []
        while not self._inbox.empty():
            posted.append(self._inbox.get())
        self._unanswered = {answer for answer in self._unanswered if not answer.done()}
        for place, item in enumerate(posted):
            if item is None:
                self._unanswered |= {later.answer for later in posted[place + 1 :] if later is not None}
                return False
            if self._expected is not None and (item.generate or item.close):
                self._held.append(item)
            else:
                self._do(item)
        self._release()
        return True

    def _release(self) -> None:
        """Do what was held back, once everybody is there."""
        waiting = [item for item in self._held if item.generate and not item.answer.cancelled()]
        if self._expected is None or self._generating + len(waiting) >= self._expected:
            held, self._held = sorted(self._held, key=lambda item: item.order), []
            for item in held:
                self._do(item)

    def _do(self, item: _Posted) -> None:
        # From here on the caller cannot cancel it, so an answer can always be given.
        if item.answer.set_running_or_notify_cancel():
            self._unanswered.add(item.answer)
            try:
                item.work()
            except Exception as error:  # a bad request fails alone
                item.answer.set_exception(error)
