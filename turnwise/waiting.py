"""Run coroutines from synchronous code."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, TypeVar

T = TypeVar("T")


class LoopRunner:
    """Runs coroutines one after another in one event loop: `with LoopRunner() as runner: runner.run(answer())`.

    Unlike `asyncio.Runner` it also works inside a running loop, as in a notebook: then its own loop gets a thread.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._thread: ThreadPoolExecutor | None = None
        if _is_in_loop():
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="turnwise-loop")
            self._loop = self._thread.submit(self._runner.get_loop).result()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result."""
        if self._thread is None:
            return self._runner.run(coroutine)
        work: Future[T] | None = None
        try:
            work = self._thread.submit(self._runner.run, coroutine)
            return work.result()
        except KeyboardInterrupt:  # only the waiting thread receives it
            self._loop.call_soon_threadsafe(_cancel_all, self._loop, work)
            raise

    def close(self) -> None:
        """End the loop; safe to call twice."""
        if self._thread is None:
            self._runner.close()
            return
        with self._thread as thread:
            thread.submit(self._runner.close).result()
        self._thread = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """`finish(answer())` is the coroutine's result, even inside a running event loop, as in a notebook."""
    with LoopRunner() as runner:
        return runner.run(coroutine)


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _cancel_all(loop: asyncio.AbstractEventLoop, work: Future[Any] | None) -> None:
    """Cancel the loop's tasks, unless the work was over before the interrupt: then they are those that close it."""
    if work is None or not work.done():
        for task in asyncio.all_tasks(loop):
            task.cancel()
