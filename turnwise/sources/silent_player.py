"""The player of a run that plays nothing: it learns from files and measures held-out pairs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager, nullcontext

from turnwise.policy.rendering import Renderer
from turnwise.recipe.schema import Rollout
from turnwise.rollout.episode import EpisodeSpec
from turnwise.rollout.scheduler import Finished, Scheduler, Specs
from turnwise.sources.cast import Cast, Voice
from turnwise.sources.player import Item, capacity_of, make_scheduler
from turnwise.types import Group


class SilentPlayer:
    """Knows how the policy is spoken to and has no engine: no memory for keys and values, no servers."""

    busy_seconds = 0.0

    def __init__(self, cast: Cast, *, rollout: Rollout, seed: int) -> None:
        self._cast, self._rollout, self._seed = cast, rollout, seed

    @property
    def renderer(self) -> Renderer:
        """How the first policy that learns is spoken to."""
        return self._cast.learning.renderer

    @property
    def capacity(self) -> int:
        """Tokens that an example may have."""
        return capacity_of(self._cast.learning, self._rollout)

    def play(
        self, specs: Sequence[EpisodeSpec], temperature: float | None = None, *, alone: str | None = None
    ) -> list[Group]:
        """Nothing, and nothing is asked for."""
        assert not specs, "a run that plays nothing was asked to play"
        return []

    def mine(self, tasks: Sequence[Item]) -> list[Item]:
        """All of no tasks."""
        return list(tasks)

    def episodes(self, specs: Specs) -> AsyncGenerator[Finished]:
        """None can be played."""
        raise AssertionError("a run that plays nothing was asked to play")

    def make_scheduler(self) -> Scheduler:
        """A scheduler with the recipe's limits."""
        return make_scheduler(self._rollout, self._seed)

    def publish(self, version: int) -> None:
        """Nobody samples from the weights."""

    def replaced(self, voices: Sequence[Voice]) -> None:
        """Nobody samples from the weights."""

    def paused(self) -> AbstractContextManager[None]:
        """There is nothing to pause."""
        return nullcontext()

    def close(self) -> None:
        """There is nothing to close."""
