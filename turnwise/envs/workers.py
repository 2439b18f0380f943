"""Where environments run: in the event loop, in a thread, or in a process; always with a deadline.

Every episode gets a new instance, so that nothing of an earlier episode affects a later one, whichever worker it
runs on. A hanging environment is interrupted (inline), abandoned (thread) or killed (process): only its episode ends.
"""

from __future__ import annotations

import asyncio
import os
import pkgutil
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from operator import attrgetter, methodcaller
from typing import Any, TypeVar

from turnwise.envs.alarm import alarm, can_interrupt, noticing_stops
from turnwise.envs.base import Env, Execution, Reset, Step, is_asynchronous
from turnwise.envs.faults import (
    EpisodeError,
    describe,
    fault_of,
    is_cancellation,
    read_random_action,
    read_reset,
    read_seats,
    read_step,
)
from turnwise.envs.lane import LAST_SECONDS, Lane
from turnwise.envs.process import EnvSource, WorkerProcess
from turnwise.envs.wrappers.wrapper import then

Job = Callable[[Env], Any]
Value = TypeVar("Value")
_CLOSE = methodcaller("close")


class LocalPlace:
    """An environment in this process; the counterpart of `WorkerProcess`."""

    def __init__(self) -> None:
        self.env: Any = None

    def build(self, source: EnvSource) -> None:
        """Set the environment."""
        self.env = source.build()

    def run(self, job: Job) -> Any:
        """`job(env)`."""
        return job(self.env)


class Host:
    """One running environment. It is reached by jobs: functions of the environment that run where it lives."""

    def __init__(
        self, place: LocalPlace | WorkerProcess, *, lane: Lane | None, release: Callable[[bool], None]
    ) -> None:
        self._place, self._lane, self._release = place, lane, release
        self._answering = False

    async def build(self, source: EnvSource, *, deadline: float) -> None:
        """Make the environment; raises EpisodeError."""
        await self._wait(partial(self._place.build, source), deadline)

    async def reset(self, seed: int | None, task: Any, *, deadline: float) -> Reset:
        """Start an episode; raises EpisodeError."""
        # Environments of other libraries take no `task`; they only get one if there is one.
        arguments = {"seed": seed} if task is None else {"seed": seed, "task": task}
        return await self._read(read_reset, methodcaller("reset", **arguments), deadline)

    async def step(self, action: str, *, deadline: float) -> Step:
        """Apply one action; raises EpisodeError."""
        return await self._read(read_step, methodcaller("step", action), deadline)

    async def cut(self, action: str, *, deadline: float) -> Step:
        """Tell an environment that pays for it (`info["pays_cuts"]`) that a limit ends the episode; EpisodeError."""
        return await self._read(read_step, methodcaller("cut", action), deadline)

    async def oracle(self, *, deadline: float) -> str:
        """The scripted expert's action; raises EpisodeError."""
        return await self.call(methodcaller("oracle"), deadline=deadline)

    async def random_action(self, generator: random.Random, *, deadline: float) -> str:
        """A random well-formed action drawn from `generator`, which advances; raises EpisodeError."""
        text, state = await self._read(read_random_action, RandomAction(generator), deadline)
        generator.setstate(state)
        return text

    async def seats(self, *, deadline: float) -> tuple[str, ...]:
        """Names of the agents that act; raises EpisodeError."""
        return await self._read(read_seats, attrgetter("seats"), deadline)

    async def call(self, job: Job, *, deadline: float) -> Any:
        """`job(env)` where the environment lives, awaited if it is asynchronous; raises EpisodeError."""
        return await self._wait(partial(self._place.run, job), deadline)

    async def _read(self, read: Callable[[Any], Value], job: Job, deadline: float) -> Value:
        # Read where the environment lives, because another process sends its objects as text, and here, because
        # another process is not trusted.
        answer = await self.call(_Read(read, job), deadline=deadline)
        try:
            return read(answer)
        except Exception as error:  # the edge as well: the environment's objects may raise when inspected
            raise fault_of(error) from error

    async def _wait(self, call: Callable[[], Any], deadline: float) -> Any:
        self._answering = self._lane is not None
        timer = asyncio.timeout(deadline)
        try:
            async with timer:
                answer = await self._answer(call, deadline)
        except (Exception, asyncio.CancelledError) as error:  # the edge: what the environment raises becomes a value
            if is_cancellation(error):
                raise
            if timer.expired():
                raise EpisodeError(f"no answer within {deadline:g} s", timed_out=True) from None
            self._answering = False
            raise fault_of(error) from error
        self._answering = False
        return answer

    async def _answer(self, call: Callable[[], Any], deadline: float) -> Any:
        if self._lane is None:
            answer = _run_here(call, deadline)
            if not isawaitable(answer):
                return answer
            if asyncio.isfuture(answer):  # it belongs to this loop
                return await answer
            # A coroutine might block the loop, where no alarm interrupts it: the environment moves to a thread.
            self._lane, self._answering, call = Lane(), True, lambda: answer
        return await asyncio.wrap_future(self._lane.submit(call))

    async def close(self, *, deadline: float) -> None:
        """Close the environment and release its place; raises EpisodeError. A hung host is abandoned."""
        try:
            if not self._answering or await self._lets_go():
                await self.call(_CLOSE, deadline=deadline)
        finally:
            self.leave()

    async def _lets_go(self) -> bool:
        """Whether a call past its deadline has freed the thread, as a waiting coroutine does when cancelled."""
        if self._lane is None or not self._lane.is_loop:
            return False
        with suppress(EpisodeError):
            await self._wait(lambda: None, LAST_SECONDS)
        return not self._answering

    def leave(self) -> None:
        """Release the place without waiting."""
        if self._lane:
            if self._answering:  # in case the hung call returns some day
                self._lane.submit(partial(self._place.run, _CLOSE))
            self._lane.stop()
        self._release(not self._answering)


def _run_here(call: Callable[[], Any], deadline: float) -> Any:
    """The call in the event loop, whose own timer cannot fire meanwhile, but the alarm can, in the main thread."""
    if not can_interrupt():  # what runs in a loop elsewhere answers with a future, at once
        return call()
    with noticing_stops() as stops:
        try:
            with alarm(deadline):
                return call()
        except BaseException as error:  # the edge: an exit raised by the environment is a fault too
            if stops:
                raise
            raise fault_of(error) from error


class _Read:
    """A job whose answer is read, immediately or once it has been awaited."""

    def __init__(self, read: Callable[[Any], Any], job: Job) -> None:
        self._read, self._job = read, job

    def __call__(self, env: Env) -> Any:
        return then(self._job(env), self._read)


class RandomAction:
    """The job of `Host.random_action`: the environment draws from our generator, its own stream is untouched."""

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator

    def __call__(self, env: Env) -> tuple[str, Any]:
        owner = getattr(env, "unwrapped", env)  # a wrapper uses the generator of what it wraps
        own, owner.rng = owner.rng, self.generator
        try:
            return env.sample_random_action(), self.generator.getstate()
        finally:
            owner.rng = own


class Workers:
    """Opens environments where they are meant to run, and owns the worker processes. Use it inside one event loop.

    Example: `host = await Workers().open(EnvSource(env="game/hanoi-easy"), deadline=10.0)`
    """

    def __init__(self, *, processes: int | None = None, execution: Execution | None = None) -> None:
        self.abandoned_threads = 0
        self.killed_processes = 0
        self._execution: Execution | None = execution
        self._places: dict[Any, Execution] = {}
        self._probes: dict[Any, asyncio.Lock] = {}
        self._idle: list[WorkerProcess] = []
        self._dying: list[WorkerProcess] = []
        self._closed = False
        # An episode keeps its worker while its agent thinks, hence more workers than cores.
        self._slots = asyncio.Semaphore(processes or 4 * (os.cpu_count() or 1))

    async def open(self, source: EnvSource, *, deadline: float) -> Host:
        """A new instance of `source` on its host; raises EpisodeError."""
        execution = self._execution or await self._find_place(source, deadline)
        host = await self._host("thread" if execution == "inline" and not can_interrupt() else execution)
        try:
            await host.build(source, deadline=deadline)
        except BaseException:
            host.leave()
            raise
        return host

    async def _host(self, execution: Execution) -> Host:
        if execution == "process":
            await self._slots.acquire()
            try:
                process = self._take_process()
            except OSError as error:  # no memory, process or file left; the next episode may succeed
                self._slots.release()
                raise EpisodeError(f"cannot start a worker process: {describe(error)}") from error
            return Host(process, lane=Lane(), release=partial(self._release_process, process))
        lane = Lane() if execution == "thread" else None
        return Host(LocalPlace(), lane=lane, release=self._release_thread)

    def _take_process(self) -> WorkerProcess:
        while self._idle:
            process = self._idle.pop()
            if process.alive:  # it may have died of something else since its last episode
                return process
        return WorkerProcess()

    def _release_thread(self, answered: bool) -> None:
        self.abandoned_threads += not answered

    def _release_process(self, process: WorkerProcess, answered: bool) -> None:
        self._slots.release()
        if answered and process.alive:
            self._idle.append(process)
        else:
            process.kill()
            self.killed_processes += 1
            self._dying = [*(each for each in self._dying if each.alive), process]  # checking reaps the dead
        if self._closed:
            self.close()

    async def _find_place(self, source: EnvSource, deadline: float) -> Execution:
        """Where the environment is meant to run: its first instance is built alone, in a thread, and asked.

        The others wait for it, so that what instances share (an index, a word list) is loaded once, not once each.
        """
        name = (source.env, repr(source.wrappers))
        async with self._probes.setdefault(name, asyncio.Lock()):
            if name not in self._places:
                # If the probe fails, the episodes still try by themselves: in threads, each with its own deadline.
                self._places[name] = "thread"
                self._places[name] = await self._probe(source, deadline)
        return self._places[name]

    async def _probe(self, source: EnvSource, deadline: float) -> Execution:
        host = await self._host("thread")
        try:
            if await host.call(lambda _: _is_process_class(source), deadline=deadline):
                host.leave()
                return "process"
            await host.build(source, deadline=deadline)
            execution = await host.call(_place_of, deadline=deadline)
        except BaseException:
            host.leave()
            raise
        with suppress(EpisodeError):  # an episode's own instance will fail the same way, and be counted
            await host.close(deadline=deadline)
        return execution

    def close(self) -> None:
        """Stop the worker processes and wait for them: idle ones now, the others when their episode releases them."""
        self._closed = True
        ending = list[WorkerProcess]()
        while waiting := self._idle or self._dying:  # one by one: the event loop may be adding to them meanwhile
            ending.append(waiting.pop())
            ending[-1].ask_to_stop()  # all are asked before the first is awaited, so that their ends overlap
        for process in ending:
            process.stop()


def _place_of(env: Env) -> Execution:
    """Where the environment is meant to run; an asynchronous one gets its own event loop, and so its own thread."""
    return "thread" if env.execution == "inline" and is_asynchronous(env) else env.execution


def _is_process_class(source: EnvSource) -> bool:
    # A class can be asked without an instance: one that wants its own process should not be built in this one.
    entry = source.spec.entry_point if source.spec else source.env
    try:
        entry = pkgutil.resolve_name(entry) if isinstance(entry, str) else entry
    except ModuleNotFoundError:  # building it says which extra to install
        return False
    return isinstance(entry, type) and getattr(entry, "execution", None) == "process"
