"""The built-in engine behind the engine contract: a thread of its own drives it, coroutines wait for their turns."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from turnwise.engine.contract import Completion, SamplingParams
from turnwise.engine.torch_engine import TorchEngine

Value = TypeVar("Value")
Pending = Future[Completion]


class EngineServer:
    """Serves many episodes at once; each waits only for its own tokens.

    Example:

        with EngineServer(TorchEngine(model, tokenizer=tokenizer)) as engine:
            completion = await engine.generate("geo-17/0", [1, 5, 6], SamplingParams(max_tokens=16))
    """

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._pending: set[Pending] = set()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._drive, name="turnwise-engine", daemon=True)
        self._thread.start()

    def __enter__(self) -> EngineServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    async def generate(self, session: str, new_ids: Sequence[int], params: SamplingParams) -> Completion:
        """Append tokens to a session and sample its continuation. Cancelling the call closes the session."""
        result = Pending()
        self._post(lambda: self._submit(session, new_ids, params, result))
        try:
            return await asyncio.wrap_future(result)
        except asyncio.CancelledError:
            self.close(session)
            raise

    def publish(self, version: int, *, recompute: bool = False) -> None:
        """The weights have changed; returns when no step under the old ones is running any more."""
        self._call(lambda: self._engine.publish(version, recompute=recompute))

    def close(self, session: str) -> None:
        """Forget a session."""
        self._post(lambda: self._engine.close(session))

    def counts(self) -> dict[str, int]:
        """Tokens run and sampled so far."""
        return self._call(lambda: dict(self._engine.counts))

    def shutdown(self) -> None:
        """End the thread; requests still waiting fail."""
        self._inbox.put(None)
        self._thread.join(timeout=30)

    def _post(self, command: Callable[[], None]) -> None:
        if self._failure is not None or not self._thread.is_alive():
            raise RuntimeError("the engine has stopped") from self._failure
        self._inbox.put(command)

    def _call(self, work: Callable[[], Value]) -> Value:
        """Run something on the engine's thread and wait for it."""
        answer: Future[Value] = Future()

        def run() -> None:
            try:
                answer.set_result(work())
            except Exception as error:
                answer.set_exception(error)

        self._post(run)
        return answer.result(timeout=600)

    def _submit(self, session: str, new_ids: Sequence[int], params: SamplingParams, result: Pending) -> None:
        def done(completion: Completion) -> None:
            self._pending.discard(result)
            if not result.cancelled():
                result.set_result(completion)

        try:
            self._engine.submit(session, new_ids, params, done)
            self._pending.add(result)
        except ValueError as error:  # a bad request fails alone
            result.set_exception(error)

    def _drive(self) -> None:
        """Serve until told to stop: sleep when there is nothing to do, step otherwise."""
        busy = False
        try:
            while True:
                for command in self._commands(wait=not busy):
                    if command is None:
                        return
                    command()
                busy = self._engine.step()
        except BaseException as error:
            self._failure = error
            raise
        finally:
            for result in list(self._pending):
                if not result.cancelled():
                    result.set_exception(RuntimeError("the engine has stopped"))

    def _commands(self, *, wait: bool) -> list[Callable[[], None] | None]:
        commands = [self._inbox.get()] if wait else []
        while not self._inbox.empty():
            commands.append(self._inbox.get())
        return commands
