"""A thread for one environment: it runs calls in order, and becomes an event loop once one returns a coroutine."""

from __future__ import annotations

import asyncio
import queue
import resource
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from inspect import isawaitable
from typing import Any

from turnwise.envs.faults import fault_of

LAST_SECONDS = 1.0
"""Seconds for a cancelled coroutine to finish."""
_OPEN_FILES = 65_536


class Lane:
    """One daemon thread that runs calls in order. It is never joined: a hanging call cannot block the program.

    Once a call returns a coroutine, the thread becomes an event loop. Only this lane uses it, so a coroutine that
    blocks it blocks nobody else.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._called = asyncio.Event()
        threading.Thread(target=self._work, name="turnwise-env", daemon=True).start()

    @property
    def is_loop(self) -> bool:
        """Whether the thread is an event loop yet."""
        return self._loop is not None

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Run `call` after those submitted before it; its exceptions arrive as an EpisodeError."""
        future: Future[Any] = Future()
        self._put((future, call))
        return future

    def stop(self) -> None:
        """Let the thread end when its calls are done."""
        self._put(None)

    def _put(self, item: tuple[Future[Any], Callable[[], Any]] | None) -> None:
        self._calls.put(item)
        _tell(self._loop, self._called.set)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            answer = _attempt(future, call)
            if isawaitable(answer):
                return self._become_loop(future, answer)

    def _become_loop(self, future: Future[Any], answer: Awaitable[Any]) -> None:
        allow_many_files()
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve(future, answer))
        except OSError as error:  # no file descriptors left for a loop
            _settle(future, error=error)

    async def _serve(self, future: Future[Any], answer: Awaitable[Any]) -> None:
        self._loop = asyncio.get_running_loop()
        tasks = {self._start(future, answer)}
        self._called.set()  # for calls submitted before the loop was known
        while await self._called.wait():
            self._called.clear()
            while not self._calls.empty():
                item = self._calls.get()
                if item is None:
                    await asyncio.wait(tasks, timeout=LAST_SECONDS)
                    return
                future, call = item
                answer = _attempt(future, call)
                if isawaitable(answer):
                    tasks.add(self._start(future, answer))

    def _start(self, future: Future[Any], answer: Awaitable[Any]) -> asyncio.Task[None]:
        """Wait for the answer alongside other calls; cancelling the future cancels the coroutine."""
        task = asyncio.create_task(_wait_for(future, answer))
        future.add_done_callback(lambda done: _tell(self._loop, task.cancel) if done.cancelled() else None)
        return task


def _attempt(future: Future[Any], call: Callable[[], Any]) -> Any:
    """Run the call and settle the future, or return its answer if it must be awaited."""
    if future.cancelled():
        return None
    try:
        answer = call()
    except BaseException as error:  # the edge: anything the environment raises becomes a value
        return _settle(future, error=error)
    return answer if isawaitable(answer) else _settle(future, answer)


async def _wait_for(future: Future[Any], answer: Awaitable[Any]) -> None:
    try:
        _settle(future, await answer)
    except BaseException as error:  # the edge: anything the environment raises becomes a value
        _settle(future, error=error)


def _settle(future: Future[Any], answer: Any = None, *, error: BaseException | None = None) -> None:
    with suppress(InvalidStateError):  # the caller has given up
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(fault_of(error))


def _tell(loop: asyncio.AbstractEventLoop | None, call: Callable[[], Any]) -> None:
    if loop is not None:
        with suppress(RuntimeError):  # it has ended
            loop.call_soon_threadsafe(call)


def allow_many_files() -> None:
    """Raise the limit as far as the system allows: a loop takes three file descriptors, and 1,024 is a common limit."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if most == resource.RLIM_INFINITY else min(most, _OPEN_FILES)
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        with suppress(OSError, ValueError):  # some systems report more than they allow
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
