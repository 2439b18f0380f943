"""The built-in engine behind the engine contract: a thread drives it, coroutines wait for their turns."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from turnwise.engine.contract import Completion, SamplingParams, Weights
from turnwise.engine.session import Heard
from turnwise.engine.torch_engine import TorchEngine

Value = TypeVar("Value")
_STOPPED = "the engine has stopped"
_PATIENCE = 600.0
"""Seconds to wait for one engine step before giving up."""


class EngineServer:
    """Serves many episodes at once; each waits only for its own tokens.

    The engine samples from the learner's own weights, so hold it still while they change:

        with EngineServer(TorchEngine(policy.model, tokenizer=policy.tokenizer)) as engine:
            completion = await engine.generate("geo-17/0", [1, 5, 6], SamplingParams(max_tokens=16))
            with engine.paused():
                optimizer.step()
            engine.publish(None, 1)

    Servers that share a `thread` are paused, expected and shut down together.
    """

    lockstep = True

    def __init__(self, engine: TorchEngine, *, thread: EngineThread | None = None) -> None:
        self._engine, self._thread = engine, thread or EngineThread()
        self.busy_seconds = 0.0
        """Time spent running the model."""
        self._thread.call(partial(self._thread.servers.append, self))

    def __enter__(self) -> EngineServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    @property
    def capacity(self) -> int:
        """Tokens that a session may hold."""
        return self._engine.capacity

    async def generate(self, session: str, new_ids: Sequence[int], params: SamplingParams) -> Completion:
        """Append tokens to a session and sample its continuation. Cancelling closes the session."""
        submit = partial(self._engine.submit, session, new_ids, params)
        answer = self._thread.generate(session, submit)
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            self.close(session)
            raise

    def generate_whole(
        self, session: str, ids: Sequence[int], params: SamplingParams, *, seed: int, heard: Heard | None = None
    ) -> Future[Completion]:
        """Continue a session from its whole sequence, for callers that may have lost or moved it.

        `heard` is called by the engine's thread with each token; it must neither wait nor raise.
        """
        submit = partial(self._engine.submit_whole, session, ids, params, seed=seed, heard=heard)
        return self._thread.generate(session, submit)

    def between_steps(self, work: Callable[[TorchEngine], Value]) -> Future[Value]:
        """Let something use the engine between two steps."""
        return self._thread.post(partial(work, self._engine))

    def hold(self, held: bool) -> None:
        """Sample nothing from now on, or go on; requests stay as they are."""
        self._thread.hold(held)

    def publish(self, weights: Weights | None, version: int) -> None:
        """The module's weights have changed; tokens sampled after this returns carry the new version."""
        self._thread.call(partial(self._engine.publish, version))

    def close(self, session: str) -> None:
        """Forget a session; on a stopped engine there is none left."""
        self._thread.close(session, partial(self._engine.close, session))

    def expect(self, requests: int | None) -> None:
        """Lock-step: sample only while this many requests wait for tokens, and take them up in order of their names."""
        self._thread.expect(requests)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the engine between two steps: nothing is sampled while the weights or adapters change."""
        with self._thread.paused():
            yield

    def counts(self) -> dict[str, int]:
        """Tokens run and sampled so far."""
        return self._thread.call(lambda: dict(self._engine.counts))

    def shutdown(self) -> None:
        """End the thread; requests still waiting fail. Keys and values do not wait for the garbage collector."""
        self._thread.shutdown()
        self._engine.release_memory()

    def step(self) -> bool:
        """One step of the engine, for its thread alone; False when there is nothing left to do."""
        started = time.perf_counter()
        busy = self._engine.step()
        self.busy_seconds += time.perf_counter() - started
        return busy


@dataclass(frozen=True, kw_only=True)
class _Posted:
    """Work for the thread that produces an answer."""

    work: Callable[[], Any]
    answer: Future[Any] = field(default_factory=Future[Any])
    closes: str = ""
    """The session that it closes, if any."""
    continues: str = ""
    """The session that it continues, if any: the answer comes with the last token."""

    @property
    def order(self) -> tuple[str, str]:
        """Closing goes before continuing; each in order of session name."""
        return self.continues, self.closes


class EngineThread:
    """Drives the engines of one process in turn, always in the same order: lock-step holds over all of them."""

    def __init__(self) -> None:
        self.servers: list[EngineServer] = []
        """Changed by the thread alone."""
        self._inbox: queue.SimpleQueue[_Posted | None] = queue.SimpleQueue()
        self._unanswered: set[Future[Any]] = set()
        self._expected: int | None = None
        self._held: list[_Posted] = []
        self._generating, self._is_held = 0, False
        self._pausing, self._is_paused = threading.RLock(), False
        self._lock = threading.Lock()
        self._open = True
        self._reason = _STOPPED
        self._thread = threading.Thread(target=self._drive, name="turnwise-engine", daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Value]) -> Value:
        """Run something between two steps and wait for it."""
        return self.post(work).result(timeout=_PATIENCE)

    def post(self, work: Callable[[], Value]) -> Future[Value]:
        """Run something between two steps."""
        return self._post(_Posted(work=work))

    def hold(self, held: bool) -> None:
        """Sample nothing while held; what is posted is still done."""

        def change() -> None:
            self._is_held = held

        self.call(change)

    def generate(self, session: str, submit: Callable[[Callable[[Completion], None]], None]) -> Future[Completion]:
        """Queue a request; `submit` takes what is to be called at its end."""
        answer: Future[Completion] = Future()

        def done(completion: Completion) -> None:
            self._generating -= 1
            answer.set_result(completion)

        def start() -> None:
            submit(done)
            self._generating += 1

        return self._post(_Posted(work=start, answer=answer, continues=session))

    def close(self, session: str, work: Callable[[], None]) -> None:
        """Forget a session, unless the thread has ended."""
        with self._lock:
            if self._open:
                self._inbox.put(_Posted(work=work, closes=session))

    def expect(self, requests: int | None) -> None:
        """Sample only while this many requests wait; None: whenever there is one."""

        def change() -> None:
            self._expected = requests

        self._post(_Posted(work=change))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold all engines between two steps; a pause inside a pause is the same pause."""
        with self._pausing:
            if self._is_paused:
                yield
                return
            with self._held_still():
                self._is_paused = True
                try:
                    yield
                finally:
                    self._is_paused = False

    @contextmanager
    def _held_still(self) -> Iterator[None]:
        still, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            still.set()
            go_on.wait()

        posted = _Posted(work=hold)
        posted.answer.add_done_callback(lambda _: still.set())  # also if the engine dies first
        self._post(posted)
        if not still.wait(timeout=_PATIENCE):
            raise RuntimeError(f"the engine did not pause within {_PATIENCE:g} s")
        if posted.answer.done():
            posted.answer.result()  # raises what ended the engine
        try:
            yield
        finally:
            go_on.set()

    def shutdown(self) -> None:
        """End the thread; requests still waiting fail."""
        with self._lock:
            self._open = False
            self._inbox.put(None)
        self._thread.join(timeout=60)

    def _post(self, item: _Posted) -> Future[Any]:
        with self._lock:
            if not self._open:
                raise RuntimeError(self._reason)
            self._inbox.put(item)
        return item.answer

    def _drive(self) -> None:
        """Serve until told to stop: sleep when there is nothing to do, step otherwise."""
        busy = False
        try:
            while self._receive(wait=not busy):
                busy = self._is_complete() and self._step()
        except Exception as error:  # the edge of the thread: tell every waiting caller why
            self._reason = f"{_STOPPED}: {type(error).__name__}: {error}"
        finally:
            self.servers.clear()  # each holds this thread: their models do not wait for the garbage collector
            with self._lock:  # no more posts: fail what still waits
                self._open = False
                while not self._inbox.empty():
                    posted = self._inbox.get()
                    self._unanswered |= set() if posted is None else {posted.answer}
            for answer in self._unanswered | {item.answer for item in self._held}:
                if not answer.done():
                    answer.set_exception(RuntimeError(self._reason))

    def _step(self) -> bool:
        busy = [server.step() for server in self.servers]
        # In lock-step, a new request must replace a finished one before anything else is sampled.
        return any(busy) and self._is_complete()

    def _is_complete(self) -> bool:
        """Whether all expected requests wait for tokens, and nobody holds the engines."""
        return not self._is_held and (self._expected is None or self._generating >= self._expected)

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
            if self._expected is not None and (item.continues or item.closes):
                self._held.append(item)
            else:
                self._do(item)
        self._release()
        return True

    def _release(self) -> None:
        """Run held-back work once all expected requests are there."""
        waiting = [item for item in self._held if item.continues and not item.answer.cancelled()]
        if self._expected is None or self._generating + len(waiting) >= self._expected:
            held, self._held = sorted(self._held, key=lambda item: item.order), []
            for item in held:
                self._do(item)

    def _do(self, item: _Posted) -> None:
        # From here on the caller cannot cancel, so an answer can always be set.
        if not item.answer.set_running_or_notify_cancel():
            return
        self._unanswered.add(item.answer)
        try:
            value = item.work()
        except Exception as error:  # a bad request fails alone
            item.answer.set_exception(error)
        else:
            if not item.continues:
                item.answer.set_result(value)
