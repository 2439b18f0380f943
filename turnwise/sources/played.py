"""Where a step's episodes come from: played when asked for, or ahead of time by at most `max_lag` versions."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from itertools import count
from typing import Protocol

from turnwise.algorithm.parts import function_of
from turnwise.envs.base import is_asynchronous
from turnwise.envs.faults import close_quietly
from turnwise.envs.registry import make
from turnwise.recipe.schema import Recipe
from turnwise.rollout.episode import EpisodeSpec, tries
from turnwise.rollout.scheduler import Finished, in_groups
from turnwise.sources.imitation import Imitation
from turnwise.sources.player import Player
from turnwise.types import Group

_PATIENCE = 3600.0
"""Seconds without a single finished episode after which a run that plays ahead gives up."""


class Source(Protocol):
    """Gives the groups of each step, steps counting from 1."""

    def groups(self, step: int) -> list[Group]:
        """The groups to learn from at this step."""
        ...

    def publish(self, version: int) -> None:
        """The policy has changed: `version` steps are done."""
        ...

    def ahead(self) -> dict[int, list[Group]]:
        """Groups of later steps that are already played: what a checkpoint keeps."""
        ...

    def close(self) -> None:
        """Stop playing."""
        ...


def step_specs(recipe: Recipe, step: int) -> list[EpisodeSpec]:
    """The episodes of one step, a function of (recipe, step) alone: that is the whole task cursor."""
    sampling = recipe.algorithm.sampling
    size = function_of("sampling", sampling.kind)(**sampling.options).tries
    tasks = recipe.rollout.episodes // size
    specs: list[EpisodeSpec] = []
    for number in range((step - 1) * tasks, step * tasks):
        # Equal tasks may come again in a later step; their episodes must not draw the same numbers again.
        name = f"step-{step}/task-{number}"
        seed = recipe.seed * 1_000_003 + number
        task = EpisodeSpec(env=recipe.env.id, kwargs=recipe.env.kwargs, seed=seed, group=name)
        specs += tries(task, size)
    return specs


class Played:
    """Synchronous: a step's episodes are played by the policy that learns from them."""

    def __init__(self, player: Player, recipe: Recipe) -> None:
        self._player, self._recipe = player, recipe

    def groups(self, step: int) -> list[Group]:
        """Play them now."""
        return self._player.play(step_specs(self._recipe, step))

    def publish(self, version: int) -> None:
        """Let the engine know."""
        self._player.publish(version)

    def ahead(self) -> dict[int, list[Group]]:
        """Nothing is ever played ahead."""
        return {}

    def close(self) -> None:
        """Nothing goes on by itself."""


class Demonstrated:
    """Imitation: a step's episodes are demonstrations."""

    def __init__(self, imitation: Imitation, player: Player) -> None:
        self._imitation, self._player = imitation, player

    def groups(self, step: int) -> list[Group]:
        """Those that the epoch's shuffle puts here."""
        return self._imitation.groups(step)

    def publish(self, version: int) -> None:
        """Evaluations play with the new policy."""
        self._player.publish(version)

    def ahead(self) -> dict[int, list[Group]]:
        """Nothing is ever played."""
        return {}

    def close(self) -> None:
        """Nothing goes on by itself."""


class PlayedAhead:
    """Overlapped: a thread of its own plays steps in order while the learner learns.

    The episodes of step s start once s − 1 − max_lag steps are done, so no turn is ever staler than that; a slow
    episode holds up its own step and no other. `kept` are groups that a checkpoint had.
    """

    def __init__(
        self, player: Player, recipe: Recipe, *, first: int, kept: dict[int, list[Group]] | None = None
    ) -> None:
        self._player, self._recipe, self._first = player, recipe, first
        self._kept = dict(kept or {})
        self._skipped = frozenset(self._kept)
        """Steps not to be played again, also after they were handed out."""
        self._finished: defaultdict[int, list[Finished]] = defaultdict(list)
        self._step_of: dict[str, int] = {}
        self._version = first - 1
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._closed, self._task = False, None
        self._thread = threading.Thread(target=self._work, name="turnwise-rollout", daemon=True)
        self._thread.start()

    def groups(self, step: int) -> list[Group]:
        """Wait for the step's last episode."""
        if step in self._kept:
            return self._kept.pop(step)
        specs = step_specs(self._recipe, step)
        with self._changed:
            while len(self._finished[step]) < len(specs):
                if self._error is not None:
                    raise self._error
                if not self._changed.wait(timeout=_PATIENCE):
                    raise ValueError(f"no episode ended within {_PATIENCE:g} s; lower rollout.step_seconds")
            return in_groups(self._finished.pop(step))

    def publish(self, version: int) -> None:
        """Let the engine know, and the episodes of one more step start."""
        self._player.publish(version)
        with self._changed:
            self._version = version

    def ahead(self) -> dict[int, list[Group]]:
        """Steps that are wholly played and not yet asked for; the episodes in flight will be played again."""
        with self._changed:
            whole = {
                step: in_groups(finished)
                for step, finished in self._finished.items()
                if len(finished) == len(step_specs(self._recipe, step))
            }
        return {**self._kept, **whole}

    def close(self) -> None:
        """Give up the episodes in flight."""
        self._closed = True
        if self._task is not None:
            with suppress(RuntimeError):  # the loop has ended by itself
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout=60)

    def _work(self) -> None:
        try:
            asyncio.run(self._play())
        except BaseException as error:  # whoever asks for the next step raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    async def _play(self) -> None:
        self._task = asyncio.current_task()
        if self._closed:
            return
        async with self._player.make_scheduler() as scheduler:
            episodes = scheduler.episodes(self._specs(), self._player.agent())
            async with aclosing(episodes):
                async for episode in episodes:
                    _, spec, _ = episode
                    with self._changed:
                        self._finished[self._step_of.pop(spec.id)].append(episode)
                        self._changed.notify_all()

    async def _specs(self) -> AsyncGenerator[EpisodeSpec]:
        for step in count(self._first):
            if step > self._recipe.train.steps:
                return
            if step in self._skipped:
                continue
            while self._version < step - 1 - self._recipe.algorithm.max_lag:
                await asyncio.sleep(0.005)
            for spec in step_specs(self._recipe, step):
                self._step_of[spec.id] = step
                yield spec


def plays_in_lockstep(recipe: Recipe) -> bool:
    """What the recipe says; else lock-step wherever it costs nothing."""
    if recipe.rollout.lockstep is not None:
        return recipe.rollout.lockstep
    return recipe.algorithm.max_lag == 0 and answers_inline(recipe)


def answers_inline(recipe: Recipe) -> bool:
    """Whether the environment answers at once, so that waiting for every episode costs nothing."""
    env = make(recipe.env.id, **recipe.env.kwargs)
    try:
        return env.execution == "inline" and not is_asynchronous(env)
    finally:
        close_quietly(env)
