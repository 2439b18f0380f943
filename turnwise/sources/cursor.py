"""Which tasks each step of a run tries, and the policy's results on them so far."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any

from turnwise.algorithm import Algorithm
from turnwise.algorithm.axes import SAMPLING
from turnwise.algorithm.parts import bind
from turnwise.envs.faults import close_quietly
from turnwise.ops.tries import SamplingPlan
from turnwise.outside import is_unread
from turnwise.recipe.schema import Recipe
from turnwise.recipe.seating import trained_seats
from turnwise.rollout.episode import EpisodeSpec
from turnwise.rollout.scheduler import at_seats
from turnwise.sources.samplers import make_sampler
from turnwise.sources.tasks import Draw, Tally, Task
from turnwise.types import Group, Trajectory

_NEWEST = 0.2
"""The minimum weight of the newest step in a running mean."""


def sampling_plan(row: Algorithm) -> SamplingPlan:
    """How the row wants tasks to be tried."""
    return bind(SAMPLING, row.sampling)()


def most_episodes(recipe: Recipe) -> int:
    """How many episodes the tasks of a step may take, further tries included."""
    episodes = recipe.rollout.episodes
    if is_unread(recipe.algorithm.sampling.kind):
        return episodes
    plan = sampling_plan(recipe.algorithm)
    further = episodes // plan.tries * (plan.longest - plan.tries)
    return episodes + (further if plan.budget is None else min(further, plan.budget))


class Cursor:
    """Draws the tasks of each step from a sampler, which sees what was measured before.

    Step s may be played when s − 1 − max_lag steps are done, so its tasks depend on the measurements of those steps
    only: neither timing nor resuming changes them.
    """

    def __init__(self, recipe: Recipe, *, tasks: int | None = None, state: Mapping[str, Any] | None = None) -> None:
        plan = sampling_plan(recipe.algorithm)
        self.tasks = tasks or recipe.rollout.episodes // plan.tries
        """Of one step."""
        self.seats = trained_seats(recipe)
        """The seats of learning policies: other players' results do not measure how hard a task is."""
        self._recipe, self._lag = recipe, recipe.algorithm.max_lag
        self._most = self.tasks * (1 + plan.refill)
        self._sampler = make_sampler(recipe.source.tasks.kind, recipe.source.tasks.options)
        self._list_tasks = cache(self._read_tasks)
        self._settled = _read(state["settled"] if state else {})
        """Up to the last step that is done, less `max_lag`."""
        self._recent = {int(step): _read(tallies) for step, tallies in (state["recent"] if state else {}).items()}
        """Of the steps after that."""
        self._drawn: defaultdict[int, dict[str, Task]] = defaultdict(dict)
        self._lock = threading.Lock()

    def draw(self, step: int, *, count: int | None = None, drawn: int = 0) -> list[EpisodeSpec]:
        """The first try at each task of a step; `drawn` are those that the step already has."""
        wanted = Draw(
            seed=self._recipe.seed,
            step=step,
            count=self.tasks if count is None else count,
            most=self._most,
            drawn=drawn,
            list_tasks=self._list_tasks,
        )
        with self._lock:
            tasks = self._sampler.choose(wanted, self._measured_before(step))
            if len(tasks) != wanted.count:
                kind = self._recipe.source.tasks.kind
                raise ValueError(f"source.tasks: {kind} chose {len(tasks)} tasks where {wanted.count} were wanted")
            # Equal tasks may come again in a later step; their episodes must not draw the same numbers again.
            named = {f"step-{step}/task-{number}": task for number, task in zip(wanted.numbers, tasks, strict=True)}
            self._drawn[step] |= named
        return [self._spec(name, task) for name, task in named.items()]

    def record(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """Record the results of the step's tasks; returns their metrics."""
        if step not in self._drawn:  # a checkpoint kept its groups
            self.draw(step)
        with self._lock:
            drawn = self._drawn.pop(step)
            self._recent[step] = _tallies(drawn, at_seats(groups, self.seats))
            for done in sorted(each for each in self._recent if each <= step - self._lag):
                self._settled = _merged(self._settled, self._recent.pop(done))
        levels = [task.level for task in drawn.values() if task.level is not None]
        return {"source/level": fmean(levels)} if levels else {}

    def state_dict(self) -> dict[str, Any]:
        """What was measured."""
        with self._lock:
            return {
                "settled": _plain(self._settled),
                "recent": {str(step): _plain(tallies) for step, tallies in self._recent.items()},
            }

    def _measured_before(self, step: int) -> dict[str, Tally]:
        measured = self._settled
        for done in sorted(each for each in self._recent if each < step - self._lag):
            measured = _merged(measured, self._recent[done])
        return measured

    def _spec(self, name: str, task: Task) -> EpisodeSpec:
        source = self._recipe.env.source(task.kwargs)
        return EpisodeSpec.of(source, seed=task.seed, task=task.task, group=name)

    def _read_tasks(self) -> Sequence[Any]:
        env = self._recipe.env.source().build()
        try:
            tasks = env.list_tasks()
        finally:
            close_quietly(env)
        if not tasks:
            raise ValueError(f"source.tasks: {self._recipe.env.id} lists no tasks; say how many seeds to play (seeds)")
        return tasks


def success_of(trajectories: Iterable[Trajectory]) -> Tally | None:
    """The policy's results in its valid episodes; None if there are none."""
    sound = [each.success for each in trajectories if each.is_own and not each.stop.is_failure]
    return Tally(tries=len(sound), success=sum(sound) / len(sound)) if sound else None


def _tallies(drawn: Mapping[str, Task], groups: Sequence[Group]) -> dict[str, Tally]:
    """Success by the names of the tasks."""
    played: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for group in groups:
        task = drawn.get(group.task_id)
        if task is not None and task.name:
            played[task.name] += group.trajectories
    return {name: tally for name, tries in played.items() if (tally := success_of(tries)) is not None}


def _merged(before: Mapping[str, Tally], new: Mapping[str, Tally]) -> dict[str, Tally]:
    merged = dict(before)
    for name, tally in new.items():
        old = before.get(name, Tally(tries=0, success=0.0))
        tries = old.tries + tally.tries
        share = max(tally.tries / tries, _NEWEST)
        merged[name] = Tally(tries=tries, success=old.success + share * (tally.success - old.success))
    return merged


def _plain(tallies: Mapping[str, Tally]) -> dict[str, list[float]]:
    return {name: [tally.tries, tally.success] for name, tally in tallies.items()}


def _read(tallies: Mapping[str, Any]) -> dict[str, Tally]:
    return {name: Tally(tries=int(tries), success=float(success)) for name, (tries, success) in tallies.items()}
