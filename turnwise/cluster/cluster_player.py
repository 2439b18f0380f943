"""The player of a run whose episodes are played by a cluster."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path

from turnwise.cluster.actor import Build
from turnwise.cluster.parcels import News, VoiceNews, packed
from turnwise.cluster.ray_players import RayPlayer, connect, import_ray, machines
from turnwise.cluster.troupe import Troupe
from turnwise.engine.kinds import IN_PROCESS
from turnwise.policy.rendering import Renderer
from turnwise.ranks import ALONE, Ranks
from turnwise.recipe.schema import Recipe
from turnwise.rollout.episode import EpisodeSpec
from turnwise.rollout.scheduler import Finished, Scheduler, Specs, in_groups, play_all
from turnwise.sources.cast import Cast, Voice
from turnwise.sources.player import Item, Player, capacity_of, make_scheduler
from turnwise.types import Group
from turnwise.waiting import LoopRunner


class ClusterPlayer:
    """Like `Player`, but others play. Rank 0 talks to them; the other ranks get what it got."""

    lockstep = False

    def __init__(
        self,
        cast: Cast,
        recipe: Recipe,
        *,
        build: Build,
        note: Callable[[str], None],
        ranks: Ranks = ALONE,
        folder: Path | None = None,
    ) -> None:
        assert recipe.cluster is not None
        if recipe.rollout.lockstep:
            raise ValueError("rollout.lockstep is true, but the players of a cluster do not wait for each other")
        self._cast, self._rollout, self._seed, self._ranks = cast, recipe.rollout, recipe.seed, ranks
        self._at_once = recipe.cluster.players * recipe.cluster.at_once
        self._sent: dict[str, VoiceNews] = {}
        self._version = 0
        # Servers get weights from here, and the players learn only where they are.
        self._leader = None
        if recipe.engine.kind != IN_PROCESS:
            self._leader = Player(
                cast,
                rollout=recipe.rollout,
                engine=recipe.engine,
                seed=recipe.seed,
                lockstep=False,
                ranks=ranks,
                folder=folder,
                note=note,
                role="leads",
            )
        self._runner = LoopRunner()
        self._troupe: Troupe | None = None
        if ranks.rank == 0:
            self._ours = connect(recipe.cluster)
            plain = recipe.model_dump(mode="json")
            if self._leader is not None:  # what was started here is there for all
                plain["engine"] |= {"urls": self._leader.urls, "start": None}
            start = partial(RayPlayer, recipe.cluster, build, plain)
            self._troupe = Troupe(recipe.cluster, lambda _: start(), machines=machines, note=note)
        self._send(cast.voices)

    @property
    def renderer(self) -> Renderer:
        """How the first policy that learns is spoken to."""
        return self._cast.learning.renderer

    @property
    def capacity(self) -> int:
        """Tokens that an episode of the first policy that learns may have."""
        return capacity_of(self._cast.learning, self._rollout)

    @property
    def busy_seconds(self) -> float:
        """Time that the players' engines have spent running their models, all together."""
        return 0.0 if self._troupe is None else self._troupe.busy_seconds

    def make_scheduler(self) -> Scheduler:
        """A scheduler in this process, for what is not sampled."""
        return make_scheduler(self._rollout, self._seed)

    def play(
        self, specs: Sequence[EpisodeSpec], temperature: float | None = None, *, alone: str | None = None
    ) -> list[Group]:
        """All episodes, in the order of the specs."""
        groups = in_groups(self._runner.run(self._play(specs, temperature, alone))) if self._troupe is not None else []
        return self._ranks.broadcast(groups)

    def mine(self, tasks: Sequence[Item]) -> list[Item]:
        """All of them on the rank that talks to the players."""
        return [] if self._troupe is None else list(tasks)

    async def episodes(self, specs: Specs) -> AsyncGenerator[Finished]:
        """Episodes as they finish, in the caller's event loop."""
        async with aclosing(self._ends(specs, None, None)) as ends:
            async for episode in ends:
                yield episode

    def publish(self, version: int) -> None:
        """Give the weights of those that learn to all players."""
        self._version = version
        if self._leader is not None:
            self._leader.publish(version)
        self._send([voice for voice in self._cast.voices if voice.learns])

    def replaced(self, voices: Sequence[Voice]) -> None:
        """Give the weights of these frozen voices to all players."""
        if self._leader is not None:
            self._leader.replaced(voices)
        self._send(voices)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing to pause: the players have weights of their own."""
        yield

    def close(self) -> None:
        """End the players, and Ray if it was started here."""
        self._runner.close()
        if self._leader is not None:
            self._leader.close()
        if self._troupe is not None:
            self._troupe.close()
            if self._ours:
                import_ray().shutdown()

    def _ends(self, specs: Specs, temperature: float | None, alone: str | None) -> AsyncGenerator[Finished]:
        assert self._troupe is not None
        play = partial(self._troupe.play, temperature=temperature, alone=alone)
        return play_all(specs, play, at_once=self._at_once)

    async def _play(self, specs: Sequence[EpisodeSpec], temperature: float | None, alone: str | None) -> list[Finished]:
        async with aclosing(self._ends(specs, temperature, alone)) as ends:
            return [episode async for episode in ends]

    def _send(self, voices: Sequence[Voice]) -> None:
        fresh: dict[str, VoiceNews] = {}
        for voice in voices:
            parcels, version = None, self._version if voice.learns else voice.version
            if self._leader is None:
                weights = packed(voice.policy.named_weights())  # on every rank, if sharded
                parcels = None if self._troupe is None else import_ray().put(weights)
            fresh[voice.name] = VoiceNews(label=voice.label, version=version, parcels=parcels)
        if self._troupe is None:
            return
        self._sent |= fresh
        self._troupe.update(self._news(fresh), lambda: self._news(self._sent))

    def _news(self, voices: dict[str, VoiceNews]) -> News:
        pools = {
            seat: {step: voice.name for step, voice in pool.held.items()} for seat, pool in self._cast.pools.items()
        }
        weights = {seat: dict(pool.weights) for seat, pool in self._cast.pools.items()}
        standings = {} if self._leader is None else self._leader.standings()
        return News(version=self._version, voices=dict(voices), pools=pools, weights=weights, standings=standings)
