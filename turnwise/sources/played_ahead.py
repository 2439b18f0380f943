"""Episodes that are played ahead of the learner, by at most `max_lag` versions."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from itertools import count
from typing import Any

from turnwise.ranks import ALONE, Ranks
from turnwise.recipe.schema import Recipe
from turnwise.rollout.episode import EpisodeSpec, tries
from turnwise.rollout.scheduler import Finished, in_groups
from turnwise.sources.cursor import Cursor, sampling_plan
from turnwise.sources.expert import Expert
from turnwise.sources.judged import Jury
from turnwise.sources.player import Playing
from turnwise.sources.source import Source
from turnwise.types import Group

_PATIENCE = 3600.0
"""Seconds without a single finished episode after which a run that plays ahead gives up."""


class PlayedAhead(Source):
    """Overlapped: a separate thread plays steps in order while the learner learns.

    The episodes of step s start once s − 1 − max_lag steps are done, so no turn is staler than that. A slow episode
    delays only its own step. `kept` are groups from a checkpoint. Each rank plays ahead its share of a step's tasks.
    """

    def __init__(
        self,
        player: Playing,
        recipe: Recipe,
        *,
        first: int,
        kept: dict[int, list[Group]] | None = None,
        tasks: int | None = None,
        state: Mapping[str, Any] | None = None,
        ranks: Ranks = ALONE,
        jury: Jury | None = None,
    ) -> None:
        self._player, self._recipe, self._first, self._ranks = player, recipe, first, ranks
        self._tries = sampling_plan(recipe.algorithm).tries
        self._cursor = Cursor(recipe, tasks=tasks, state=state)
        self._expert = Expert.of(recipe, player, ranks)
        self._jury = jury or Jury.of(recipe, ranks)
        self._metrics: dict[str, float] = {}
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
        groups = self._kept.pop(step) if step in self._kept else self._everyones(self._wait(step))
        if self._expert is not None:
            self._expert.join(self._cursor.draw(step), groups)
        self._jury.judge(groups)
        self._metrics = self._cursor.record(step, groups)
        return groups

    def metrics(self) -> dict[str, float]:
        """The level of the last step's tasks."""
        return self._metrics

    def state_dict(self) -> dict[str, Any]:
        """What its tasks have measured."""
        return self._cursor.state_dict()

    def _everyones(self, groups: list[Group]) -> list[Group]:
        return [group for rank in self._ranks.gather(groups) for group in rank]

    def _wait(self, step: int) -> list[Group]:
        with self._changed:
            while len(self._finished[step]) < self._episodes:
                if self._error is not None:
                    raise self._error
                if not self._changed.wait(timeout=_PATIENCE):
                    raise ValueError(f"no episode ended within {_PATIENCE:g} s; lower rollout.step_seconds")
            return in_groups(self._finished.pop(step))

    def publish(self, version: int) -> None:
        """Publish the new version to the engine, and start the episodes of one more step."""
        self._player.publish(version)
        with self._changed:
            self._version = version

    def ahead(self) -> dict[int, list[Group]]:
        """Steps that are fully played and not yet requested; episodes in flight will be played again."""
        with self._changed:
            whole = {
                step: in_groups(finished)
                for step, finished in self._finished.items()
                if len(finished) == self._episodes
            }
        known = self._ranks.gather(whole)
        everyones = [step for step in whole if all(step in rank for rank in known)]
        return {**self._kept, **{step: [group for rank in known for group in rank[step]] for step in everyones}}

    def close(self) -> None:
        """Give up the episodes in flight."""
        if self._expert is not None:
            self._expert.close()
        self._closed = True
        if self._task is not None:
            with suppress(RuntimeError):  # the loop has already ended
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout=60)

    @property
    def _episodes(self) -> int:
        """Of one step, on this rank."""
        return len(self._player.mine(range(self._cursor.tasks))) * self._tries

    def _work(self) -> None:
        try:
            asyncio.run(self._play())
        except BaseException as error:  # raised when the next step is requested
            with self._changed:
                self._error = error
                self._changed.notify_all()

    async def _play(self) -> None:
        self._task = asyncio.current_task()
        if self._closed or not self._episodes:
            return
        async with aclosing(self._player.episodes(self._specs())) as episodes:
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
            for task in self._player.mine(self._cursor.draw(step)):
                for spec in tries(task, self._tries):
                    self._step_of[spec.id] = step
                    yield spec
