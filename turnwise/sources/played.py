"""Episodes that the policy plays when they are asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnwise.algorithm import apply_filters
from turnwise.envs.base import is_asynchronous
from turnwise.envs.faults import close_quietly
from turnwise.ranks import ALONE, Ranks
from turnwise.recipe.schema import Recipe
from turnwise.rollout.episode import EpisodeSpec, tries
from turnwise.rollout.scheduler import at_seats
from turnwise.sources.cursor import Cursor, sampling_plan, success_of
from turnwise.sources.expert import Expert
from turnwise.sources.judged import Jury
from turnwise.sources.player import Playing
from turnwise.sources.source import Source
from turnwise.types import Group, Trajectory

_EXTRA = "source/extra"


class Played(Source):
    """Synchronous: a step's episodes are played by the policy that learns from them."""

    def __init__(
        self,
        player: Playing,
        recipe: Recipe,
        *,
        tasks: int | None = None,
        state: Mapping[str, Any] | None = None,
        ranks: Ranks = ALONE,
        jury: Jury | None = None,
    ) -> None:
        self._player, self._row = player, recipe.algorithm
        self._plan = sampling_plan(recipe.algorithm)
        self._cursor = Cursor(recipe, tasks=tasks, state=state)
        self._expert = Expert.of(recipe, player, ranks)
        self._jury = jury or Jury.of(recipe, ranks)
        self._metrics: dict[str, float] = {}

    def groups(self, step: int) -> list[Group]:
        """Play them now, and more if the row's plan says so; returns all that were played."""
        self._metrics = {}
        drawn = self._cursor.tasks
        groups = self._play(self._cursor.draw(step))
        for _ in range(self._plan.refill):
            if not (missing := self._cursor.tasks - self._whole(groups)):
                break
            groups += self._play(self._cursor.draw(step, count=missing, drawn=drawn))
            drawn += missing
        if self._plan.refill:
            self._metrics["source/refilled"] = float(drawn - self._cursor.tasks)
            self._metrics["source/missing"] = float(self._cursor.tasks - self._whole(groups))
        self._metrics |= self._cursor.record(step, groups)
        return groups

    def publish(self, version: int) -> None:
        """Publish the new version to the engine."""
        self._player.publish(version)

    def metrics(self) -> dict[str, float]:
        """Extra tasks and tries of the last step, and the level of its tasks."""
        return self._metrics

    def state_dict(self) -> dict[str, Any]:
        """What its tasks have measured."""
        return self._cursor.state_dict()

    def close(self) -> None:
        """Close the expert's environments."""
        if self._expert is not None:
            self._expert.close()

    def _play(self, tasks: Sequence[EpisodeSpec]) -> list[Group]:
        """The complete groups of some tasks, with further tries and the expert's members, and judged."""
        groups = self._player.play([each for task in tasks for each in tries(task, self._plan.tries)])
        if self._plan.extra is not None:
            self._try_again(tasks, groups)
        if self._expert is not None:
            self._expert.join(tasks, groups)
        self._jury.judge(groups)
        return groups

    def _try_again(self, tasks: Sequence[EpisodeSpec], groups: list[Group]) -> None:
        """Try tasks again as the plan says; the tries join their groups."""
        played = defaultdict[str, list[Trajectory]](list)
        for group in at_seats(groups, self._cursor.seats):
            played[group.task_id] += group.trajectories
        tallies = [success_of(played[task.group]) for task in tasks]
        spent, first = int(self._metrics.get(_EXTRA, 0)), self._plan.tries
        counts = self._plan.further([tally and tally.success for tally in tallies], spent=spent)
        more = [
            replace(task, index=first + number)
            for task, count in zip(tasks, counts, strict=True)
            for number in range(count)
        ]
        by_id = {group.id: group for group in groups}
        for group in self._player.play(more) if more else ():
            by_id[group.id].trajectories += group.trajectories
        self._metrics[_EXTRA] = float(spent + len(more))

    def _whole(self, groups: Sequence[Group]) -> int:
        """How many tasks survive the row's filters."""
        own = at_seats(groups, self._cursor.seats)
        return len({group.task_id for group in apply_filters(self._row, own)})


def plays_in_lockstep(recipe: Recipe) -> bool:
    """What the recipe says; else lock-step wherever it costs nothing."""
    if recipe.rollout.lockstep is not None:
        return recipe.rollout.lockstep
    return recipe.algorithm.max_lag == 0 and answers_inline(recipe)


def answers_inline(recipe: Recipe) -> bool:
    """Whether the environment answers at once, so that waiting for every episode costs nothing."""
    env = recipe.env.source().build()
    try:
        return env.execution == "inline" and not is_asynchronous(env)
    finally:
        close_quietly(env)
