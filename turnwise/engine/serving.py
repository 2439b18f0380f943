"""The built-in engine behind the engine contract: a thread of its own drives it, coroutines wait for their turns."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from turnwise.engine.contract import Completion, SamplingParams
from turnwise.engine.torch_engine import TorchEngine

Value = TypeVar("Value")
_STOPPED = "the engine has stopped"


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
        self._inbox: queue.SimpleQueue[tuple[Future[Any], Callable[[], None]] | None] = queue.SimpleQueue()
        self._unanswered: set[Future[Any]] = set()
        self._door = threading.Lock()
        self._open = True
        self._thread = threading.Thread(target=self._drive, name="turnwise-engine", daemon=True)
        self._thread.start()

    def __enter__(self) -> EngineServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    async def generate(self, session: str, new_ids: Sequence[int], params: SamplingParams) -> Completion:
        """Append tokens to a session and sample its continuation. Cancelling the call closes the session."""
        answer: Future[Completion] = Future()
        self._post(answer, lambda: self._engine.submit(session, new_ids, params, answer.set_result))
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
                self._inbox.put((answer, lambda: answer.set_result(self._engine.close(session))))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the engine between two steps: nothing is sampled while the weights or adapters change."""
        still, go_on = threading.Event(), threading.Event()
        answer: Future[None] = Future()

        def hold() -> None:
            still.set()
            go_on.wait()
            answer.set_result(None)

        self._post(answer, hold)
        still.wait()
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

    def _post(self, answer: Future[Any], work: Callable[[], None]) -> None:
        """Have the thread do some work that leads to an answer."""
        with self._door:
            if not self._open:
                raise RuntimeError(_STOPPED)
            self._inbox.put((answer, work))

    def _call(self, work: Callable[[], Value]) -> Value:
        """Run something on the engine's thread and wait for it."""
        answer: Future[Value] = Future()
        self._post(answer, lambda: answer.set_result(work()))
        return answer.result(timeout=600)

    def _drive(self) -> None:
        """Serve until told to stop: sleep when there is nothing to do, step otherwise."""
        busy = False
        try:
            while self._receive(wait=not busy):
                busy = self._engine.step()
        finally:
            with self._door:  # nobody posts any more: whoever still waits is told
                self._open = False
                while not self._inbox.empty():
                    posted = self._inbox.get()
                    self._unanswered |= set() if posted is None else {posted[0]}
            for answer in self._unanswered:
                if not answer.done():
                    answer.set_exception(RuntimeError(_STOPPED))

    def _receive(self, *, wait: bool) -> bool:
        """Do what was posted; False when told to stop."""
        posted = [self._inbox.get()] if wait else []
        while not self._inbox.empty():
            posted.append(self._inbox.get())
        self._unanswered = {answer for answer in self._unanswered if not answer.done()}
        for place, item in enumerate(posted):
            if item is None:
                self._unanswered |= {later[0] for later in posted[place + 1 :] if later is not None}
                return False
            answer, work = item
            # From here on the caller cannot cancel it, so an answer can always be given.
            if answer.set_running_or_notify_cancel():
                self._unanswered.add(answer)
                try:
                    work()
                except Exception as error:  # a bad request fails alone
                    answer.set_exception(error)
        return True
