"""Plays episodes with the current policies: an engine for each, and the scheduler."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from turnwise.engine.contract import EngineSetup, Mixed, Role, SamplingParams, ServerStart, Weights
from turnwise.engine.kinds import IN_PROCESS, check_engine, make_engines
from turnwise.engine.remote import RemoteEngine, ServerStanding
from turnwise.policy.rendering import Renderer
from turnwise.ranks import ALONE, Ranks
from turnwise.recipe.machines import EngineChoice
from turnwise.recipe.schema import CONTEXT, Rollout
from turnwise.rollout.agents import Agent, PoolAgent
from turnwise.rollout.episode import EpisodeSpec, Limits
from turnwise.rollout.policy_agent import PolicyAgent
from turnwise.rollout.scheduler import Agents, Finished, Scheduler, Specs, in_groups
from turnwise.sources.cast import Cast, Pool, Voice
from turnwise.types import Group
from turnwise.waiting import LoopRunner

Item = TypeVar("Item")


class Playing(Protocol):
    """What plays the episodes of a run: this process, or the players of a cluster."""

    @property
    def renderer(self) -> Renderer:
        """How the first policy that learns is spoken to."""
        ...

    @property
    def capacity(self) -> int:
        """Tokens that an episode of the first policy that learns may have."""
        ...

    @property
    def busy_seconds(self) -> float:
        """Time that the engines have spent running their models."""
        ...

    def play(
        self, specs: Sequence[EpisodeSpec], temperature: float | None = None, *, alone: str | None = None
    ) -> list[Group]:
        """All episodes, in the order of the specs; every rank gets all groups. `alone` plays every seat."""
        ...

    def mine(self, tasks: Sequence[Item]) -> list[Item]:
        """Those tasks of a step that this rank plays ahead; the shares in rank order are the whole."""
        ...

    def episodes(self, specs: Specs) -> AsyncGenerator[Finished]:
        """Episodes as they finish, for a loop that plays ahead of the learner."""
        ...

    def make_scheduler(self) -> Scheduler:
        """A scheduler in this process with the recipe's limits."""
        ...

    def publish(self, version: int) -> None:
        """The weights of those that learn have changed."""
        ...

    def replaced(self, voices: Sequence[Voice]) -> None:
        """The weights of these frozen voices have changed."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Pause sampling while the learner's weights change."""
        ...

    def close(self) -> None:
        """End everything that it has started."""
        ...


class Player:
    """Plays any number of episodes in parallel, in this process.

    Example: `Player(Cast.alone(policy, renderer), rollout=recipe.rollout, seed=0).play(specs, temperature=0.0)`.
    """

    def __init__(
        self,
        cast: Cast,
        *,
        rollout: Rollout,
        seed: int,
        engine: EngineChoice | None = None,
        lockstep: bool = True,
        ranks: Ranks = ALONE,
        folder: Path | None = None,
        note: Callable[[str], None] = lambda _: None,
        role: Role = "alone",
    ) -> None:
        """`folder` is where engines in other processes find weights; `note` shows what they have to say."""
        choice = engine or EngineChoice()
        self._cast, self._rollout, self._seed, self._ranks = cast, rollout, seed, ranks
        setups = [replace(setup, role=role) for setup in self._setups(choice, folder, note)]
        self._engines = make_engines(choice.kind, setups, choice.options)
        # Only the engines in this process coordinate; of others, a single one can wait for every episode.
        together = choice.kind == IN_PROCESS or len(self._engines) == 1
        able = together and all(engine.lockstep for engine in self._engines.values())
        self.lockstep = lockstep and able
        self._sampling = SamplingParams(max_tokens=rollout.max_tokens, temperature=rollout.temperature)
        self.scheduler = self.make_scheduler()
        # One event loop for the whole run: worker processes of environments belong to it.
        self._runner = LoopRunner()
        if rollout.lockstep and not able:
            self.close()
            raise ValueError("rollout.lockstep is true, but the engine (engine.kind) cannot wait for every episode")
        try:
            self.replaced(cast.voices)
        except BaseException:
            self.close()
            raise

    def make_scheduler(self) -> Scheduler:
        """A scheduler with the recipe's limits; each event loop needs its own."""
        return make_scheduler(self._rollout, self._seed)

    async def episodes(self, specs: Specs) -> AsyncGenerator[Finished]:
        """Episodes as they finish, sampled as in training, in the caller's event loop."""
        async with self.make_scheduler() as scheduler, aclosing(scheduler.episodes(specs, self.agents())) as ends:
            async for episode in ends:
                yield episode

    def agents(self, temperature: float | None = None, alone: str | None = None) -> Agents:
        """Who plays each seat, or the policy that plays them all; by default policies sample as in training."""
        speakers = self.speakers(temperature)
        if alone is not None:
            return speakers[alone]
        if not self._cast.seats:
            (only,) = speakers.values()
            return only
        return {seat: _agent(player, speakers) for seat, player in self._cast.seats.items()}

    def speakers(self, temperature: float | None = None) -> dict[str, PolicyAgent]:
        """The agent of every voice."""
        sampling = self._sampling if temperature is None else replace(self._sampling, temperature=temperature)
        return {voice.name: self._speaker(voice, sampling) for voice in self._cast.voices}

    def play(
        self, specs: Sequence[EpisodeSpec], temperature: float | None = None, *, alone: str | None = None
    ) -> list[Group]:
        """All episodes, in the order of the specs. Each rank plays its share of the tasks, and all get all groups."""
        return self.play_with(specs, self.agents(temperature, alone))

    def play_with(self, specs: Sequence[EpisodeSpec], agents: Agents) -> list[Group]:
        """The same with these agents at the seats."""
        tasks: dict[str, list[EpisodeSpec]] = {}
        for spec in specs:
            tasks.setdefault(spec.group_id, []).append(spec)
        mine = [spec for task in self.mine(list(tasks.values())) for spec in task]
        groups = in_groups(self._runner.run(self._play(mine, agents))) if mine else []
        return [group for played in self._ranks.gather(groups) for group in played]

    def mine(self, tasks: Sequence[Item]) -> list[Item]:
        """This rank's share."""
        return self._ranks.share(tasks)

    def publish(self, version: int) -> None:
        """The weights of those that learn have changed."""
        for voice in self._cast.voices:
            if voice.learns:
                self._send(voice, version)

    def replaced(self, voices: Sequence[Voice]) -> None:
        """The weights of these voices are new, or have changed while they were frozen."""
        for voice in voices:
            self._send(voice, voice.version)

    @property
    def urls(self) -> dict[str, list[str]]:
        """The servers of each voice, if any."""
        remote = {name: engine for name, engine in self._engines.items() if isinstance(engine, RemoteEngine)}
        return {name: [server.url for server in engine.servers] for name, engine in remote.items()}

    def standings(self) -> dict[str, ServerStanding]:
        """What players that sample on the same servers must know after a publish, by voice."""
        return {name: engine.standing() for name, engine in self._engines.items() if isinstance(engine, RemoteEngine)}

    def follow(self, standings: Mapping[str, ServerStanding]) -> None:
        """Sample like the player that has published."""
        for name, standing in standings.items():
            engine = self._engines[name]
            assert isinstance(engine, RemoteEngine)
            engine.follow(standing)

    @property
    def renderer(self) -> Renderer:
        """How the first policy that learns is spoken to."""
        return self._cast.learning.renderer

    @property
    def capacity(self) -> int:
        """Tokens that an episode of the first policy that learns may have."""
        return self._engines[self._cast.learning.name].capacity

    @property
    def busy_seconds(self) -> float:
        """Time that the engines have spent running their models."""
        return sum(engine.busy_seconds for engine in self._engines.values())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause sampling."""
        with ExitStack() as stack:
            for engine in self._engines.values():
                stack.enter_context(engine.paused())
            yield

    def close(self) -> None:
        """End the engines and the workers of the environments."""
        for engine in self._engines.values():
            engine.shutdown()
        self.scheduler.close()
        self._runner.close()

    def _setups(self, choice: EngineChoice, folder: Path | None, note: Callable[[str], None]) -> list[EngineSetup]:
        voices = self._cast.voices
        urls = choice.urls_of([voice.name for voice in voices])
        check_engine(choice.kind, choice.options, urls, starts=choice.start is not None)
        start = None if choice.start is None else ServerStart(**choice.start.model_dump())
        return [
            EngineSetup(
                policy=voice.name,
                model_name=voice.policy.model.name_or_path or "",
                model=(voice.copy or voice.policy).model,
                tokenizer=voice.policy.tokenizer,
                capacity=capacity_of(voice, self._rollout),
                memory_bytes=int(choice.memory_gib * 2**30) // len(voices),
                seed=self._seed,
                urls=urls[voice.name],
                start=start,
                folder=folder,
                ranks=self._ranks,
                note=note,
                routing=voice.routing,
                mixed=None if voice.mixture is None else Mixed(model=voice.mixture.before.model, mix=voice.mixture.mix),
            )
            for voice in voices
        ]

    def _speaker(self, voice: Voice, sampling: SamplingParams) -> PolicyAgent:
        engine = self._engines[voice.name]
        return PolicyAgent(engine=engine, renderer=voice.renderer, sampling=sampling, policy=voice.label)

    def _send(self, voice: Voice, version: int) -> None:
        engine = self._engines[voice.name]
        if voice.copy is not None:
            with engine.paused():
                voice.copy.refresh()
        engine.publish(Weights(named=voice.policy.named_weights), version)

    async def _play(self, specs: Sequence[EpisodeSpec], agents: Agents) -> list[Finished]:
        finished: list[Finished] = []
        self._expect(len(specs))
        try:
            async for episode in self.scheduler.episodes(specs, agents):
                finished.append(episode)
                self._expect(len(specs) - len(finished))
        finally:
            self._expect(None)
        return finished

    def _expect(self, unfinished: int | None) -> None:
        if self.lockstep:
            requests = None if unfinished is None else min(unfinished, self._rollout.concurrency)
            next(iter(self._engines.values())).expect(requests)  # built-in engines share a thread


def make_scheduler(rollout: Rollout, seed: int) -> Scheduler:
    """A scheduler with the limits of a recipe."""
    limits = Limits(max_turns=rollout.max_turns, step_seconds=rollout.step_seconds)
    return Scheduler(concurrency=rollout.concurrency, limits=limits, seed=seed)


def capacity_of(voice: Voice, rollout: Rollout) -> int:
    """Tokens that an episode of this voice may have."""
    return rollout.context or min(voice.policy.room or CONTEXT, CONTEXT)


def _agent(player: Voice | Pool | Agent, speakers: dict[str, PolicyAgent]) -> Agent:
    if isinstance(player, Agent):
        return player
    if isinstance(player, Voice):
        return speakers[player.name]
    weights = [player.weights[step] for step in player.held] if player.weights else None
    return PoolAgent([speakers[voice.name] for voice in player.held.values()], weights)
