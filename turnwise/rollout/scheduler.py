"""Hundreds of episodes at once without a barrier: each runs at its own pace, a slow tool delays nobody else."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
)
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from turnwise.envs.faults import Culprit, is_cancellation
from turnwise.envs.process import EnvSource
from turnwise.envs.workers import Execution, Workers
from turnwise.rollout.agents import Agent
from turnwise.rollout.episode import Episode, EpisodeSpec, Limits
from turnwise.types import Group, StopReason, Trajectory
from turnwise.words import counted

Agents = Agent | Mapping[str, Agent]
"""One agent for all seats, or one per seat name."""
Specs = Iterable[EpisodeSpec] | AsyncIterable[EpisodeSpec]
Finished = tuple[int, EpisodeSpec, list[Trajectory]]
"""A finished episode: the position of its spec, the spec, and one trajectory per seat."""
PlayOne = Callable[[EpisodeSpec], Awaitable[list[Trajectory]]]


@dataclass(kw_only=True)
class RolloutStats:
    """What happened so far: `stats.ends["search/geo-2hop", StopReason.DONE]` episodes ended by themselves."""

    episodes: int = 0
    turns: int = 0
    ends: Counter[tuple[str, StopReason]] = field(default_factory=Counter[tuple[str, StopReason]])
    """Episodes by environment and reason."""
    faults: Counter[tuple[str, Culprit]] = field(default_factory=Counter[tuple[str, Culprit]])
    """Crashes, time-outs and malformed answers by environment and cause."""
    last_error: dict[str, str] = field(default_factory=dict[str, str])
    """The latest error text of each environment."""
    abandoned_threads: int = 0
    killed_processes: int = 0

    def record(self, name: str, episode: Episode, trajectories: list[Trajectory]) -> None:
        """Count one finished episode."""
        self.episodes += 1
        self.turns += sum(len(trajectory.turns) for trajectory in trajectories)
        self.ends[name, trajectories[0].stop] += 1
        if episode.fault is not None:
            self.faults[name, episode.fault.culprit] += 1
            self.last_error[name] = str(episode.fault)

    def summary(self) -> str:
        """A few lines for people."""
        lines = [f"{counted(self.episodes, 'episode')}, {counted(self.turns, 'turn')}"]
        lines += [f"  {name}: {count} {reason}" for (name, reason), count in sorted(self.ends.items())]
        lines += [f"  {name}: {count} {culprit} faults" for (name, culprit), count in sorted(self.faults.items())]
        lines += [f"  {name}: last error: {text}" for name, text in sorted(self.last_error.items())]
        if self.abandoned_threads or self.killed_processes:
            lines += [f"  abandoned {self.abandoned_threads} threads, killed {self.killed_processes} processes"]
        return "\n".join(lines)


class Scheduler:
    """Plays episodes. The result depends on specs, agents and seed, never on concurrency or timing.

    Example:

        async with Scheduler(concurrency=256, limits=Limits(max_turns=8)) as scheduler:
            specs = [spec for seed in range(32) for spec in tries(EpisodeSpec(env="search/geo-2hop", seed=seed), 8)]
            groups = await scheduler.run_groups(specs, RandomAgent())
            print(scheduler.stats.summary())
    """

    def __init__(
        self,
        *,
        concurrency: int = 256,
        limits: Limits | None = None,
        seed: int = 0,
        processes: int | None = None,
        execution: Execution | None = None,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        self.stats = RolloutStats()
        self._concurrency, self._limits, self._seed = concurrency, limits or Limits(), seed
        self._checked = set[tuple[Any, ...]]()
        self._workers = Workers(processes=processes, execution=execution)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)  # it waits for the processes to end

    def close(self) -> None:
        """Stop the worker processes."""
        self._workers.close()

    async def stream(self, specs: Specs, agents: Agents) -> AsyncIterator[Trajectory]:
        """Trajectories as their episodes finish. Specs are drawn as places become free, so they may be endless."""
        async for _, _, trajectories in self.episodes(specs, agents):
            for trajectory in trajectories:
                yield trajectory

    async def run(self, specs: Specs, agents: Agents) -> list[Trajectory]:
        """All trajectories, in the order of the specs (and of the seats within one)."""
        return [trajectory for _, trajectories in await self._in_order(specs, agents) for trajectory in trajectories]

    async def run_groups(self, specs: Specs, agents: Agents) -> list[Group]:
        """The trajectories by task: those of one group id and one seat are compared with each other."""
        return in_groups([episode async for episode in self.episodes(specs, agents)])

    async def _in_order(self, specs: Specs, agents: Agents) -> list[tuple[EpisodeSpec, list[Trajectory]]]:
        finished = [episode async for episode in self.episodes(specs, agents)]
        return [(spec, trajectories) for _, spec, trajectories in sorted(finished, key=lambda episode: episode[0])]

    async def episodes(self, specs: Specs, agents: Agents) -> AsyncGenerator[Finished]:
        """Episodes as they finish: the spec's position, the spec and one trajectory per seat."""
        _check_agents(agents)
        async with aclosing(play_all(specs, partial(self.play_one, agents=agents), at_once=self._concurrency)) as ends:
            async for episode in ends:
                yield episode

    async def _check(self, source: EnvSource) -> None:
        """Unknown ids and arguments are the caller's mistake, not an episode's, so they raise here."""
        known = (source.env, *sorted(source.kwargs), repr(source.wrappers))
        if known not in self._checked:
            await asyncio.to_thread(source.check)  # it may import a package
            self._checked.add(known)

    async def play_one(self, spec: EpisodeSpec, agents: Agents) -> list[Trajectory]:
        """One episode: a trajectory per seat."""
        source = spec.source
        await self._check(source)
        episode = Episode(spec, agents, self._limits, seed=self._seed)
        trajectories = await episode.play(partial(self._workers.open, source, deadline=self._limits.reset_seconds))
        self.stats.record(source.name, episode, trajectories)
        self.stats.abandoned_threads = self._workers.abandoned_threads
        self.stats.killed_processes = self._workers.killed_processes
        return trajectories


async def play_all(specs: Specs, play_one: PlayOne, *, at_once: int) -> AsyncGenerator[Finished]:
    """Episodes as they finish, `at_once` of them at a time; specs are drawn as places become free."""
    source, finished = _Numbered(specs), asyncio.Queue[Finished | BaseException | None](at_once)
    players = [asyncio.create_task(_play(source, play_one, finished)) for _ in range(at_once)]
    try:
        for _ in players:  # each sends None when there is nothing left to play
            while (episode := await finished.get()) is not None:
                if isinstance(episode, BaseException):
                    raise episode
                yield episode
    finally:
        for player in players:
            player.cancel()
        await asyncio.gather(*players, return_exceptions=True)


async def _play(source: _Numbered, play_one: PlayOne, finished: asyncio.Queue[Finished | BaseException | None]) -> None:
    try:
        async for position, spec in source:
            await finished.put((position, spec, await play_one(spec)))
    except BaseException as error:  # a mistake in the specs or the agents' seats: the reader raises it
        if is_cancellation(error):  # the reader has left
            raise
        await finished.put(error)
    await finished.put(None)


def in_groups(finished: Iterable[Finished]) -> list[Group]:
    """Episodes by task, in the order of their specs: those of one group id and one seat are compared."""
    groups: dict[str, Group] = {}
    for _, spec, trajectories in sorted(finished, key=lambda episode: episode[0]):
        for trajectory in trajectories:
            name = spec.group_id if len(trajectories) == 1 else f"{spec.group_id}/{trajectory.seat}"
            group = groups.setdefault(name, Group(id=name, trajectories=[], task_id=spec.group_id))
            group.trajectories.append(trajectory)
    return list(groups.values())


def by_task(groups: Iterable[Group]) -> list[Group]:
    """The same trajectories, with all seats and tries of one task in one group."""
    tasks: dict[str, Group] = {}
    for group in groups:
        task = tasks.setdefault(group.task_id, Group(id=group.task_id, trajectories=[]))
        task.trajectories += group.trajectories
    return list(tasks.values())


def at_seats(groups: Iterable[Group], seats: Collection[str] | None) -> list[Group]:
    """What was played at these seats; None: at all of them."""
    if seats is None:
        return list(groups)
    kept = [replace(each, trajectories=[one for one in each.trajectories if one.seat in seats]) for each in groups]
    return [group for group in kept if group.trajectories]


def _check_agents(agents: Any) -> None:
    table = agents if isinstance(agents, Mapping) else {"": agents}
    wrong = [agent for agent in table.values() if not isinstance(agent, Agent)]
    if wrong or not table:
        got = wrong[0] if wrong else agents
        raise ValueError(
            f"agents must be an agent such as RandomAgent(), or one by seat name such as {{'white': RandomAgent()}}, "
            f"got {got!r}; FunctionAgent(function) makes an agent of a function"
        )


class _Numbered:
    """Specs and their positions, given to whichever player asks next."""

    def __init__(self, specs: Specs) -> None:
        if isinstance(specs, str | EpisodeSpec) or not isinstance(specs, Iterable | AsyncIterable):
            raise ValueError(f"specs must be several EpisodeSpecs, such as [EpisodeSpec(env=...)], got {specs!r}")
        self._specs = aiter(specs) if isinstance(specs, AsyncIterable) else iter(specs)
        self._turn = asyncio.Lock()
        self._position = 0
        self._given = set[str]()

    def __aiter__(self) -> _Numbered:
        return self

    async def __anext__(self) -> tuple[int, EpisodeSpec]:
        async with self._turn:  # asynchronous generators allow one caller at a time
            try:
                spec = await anext(self._specs) if isinstance(self._specs, AsyncIterator) else next(self._specs)
            except StopIteration:
                raise StopAsyncIteration from None
            if not isinstance(spec, EpisodeSpec):
                raise ValueError(f"every spec must be an EpisodeSpec, such as EpisodeSpec(env={spec!r}), got {spec!r}")
            if spec.id in self._given:
                raise ValueError(
                    f"two specs are named {spec.id!r}; use tries(spec, count) for tries at one task, or set `group`"
                )
            self._given.add(spec.id)
            position, self._position = self._position, self._position + 1
            return position, spec
