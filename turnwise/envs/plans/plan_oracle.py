"""Did the calls satisfy the request? If not, why not: the first of five errors that fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from turnwise.envs.plans.plan_task import PlanTask
from turnwise.envs.plans.synthesis import OPENS


class PlanError(StrEnum):
    """Why a request was not satisfied, in the order in which errors are looked for."""

    TIMEOUT = "timeout"
    """Too many turns, or too much time."""
    ACT = "act"
    """A tool that does not exist, or a call that cannot be read."""
    LOST = "lost"
    """An action was never executed."""
    ORDER = "order"
    """An action came before one that must precede it."""
    PARAMETER = "parameter"
    """A start time that overlaps with what ran before, or violates a time in the request."""


@dataclass(kw_only=True)
class PlanLog:
    """What an agent has done: each action counts where it was first executed."""

    starts: dict[int, int] = field(default_factory=dict[int, int])
    """The minute at which each action started, in the order of the calls."""
    wrong_calls: int = 0

    def clock(self, task: PlanTask) -> int:
        """When the last action ends."""
        return max((start + length(task, each) for each, start in self.starts.items()), default=OPENS)


def length(task: PlanTask, action: int) -> int:
    """Minutes that an action takes; without times each takes one."""
    return 1 if task.minutes is None else task.minutes[action]


def find_error(task: PlanTask, log: PlanLog, *, timed_out: bool = False) -> PlanError | None:
    """The error of a finished episode; None if the request is satisfied, even after wrong calls."""
    lost = len(log.starts) < len(task.actions)
    if lost and timed_out:
        return PlanError.TIMEOUT
    order = bool(task.constraints.broken_orders(tuple(log.starts)))
    parameter = broken_times(task, log.starts) > 0
    if log.wrong_calls and (lost or order or parameter):
        return PlanError.ACT
    found = {PlanError.LOST: lost, PlanError.ORDER: order, PlanError.PARAMETER: parameter}
    return next((error for error, holds in found.items() if holds), None)


def satisfied_share(task: PlanTask, log: PlanLog) -> float:
    """The share of actions that were executed and of demands that hold; 1.0 only if all do."""
    demands = len(task.constraints) + len(task.actions) * (2 if task.minutes is not None else 1)
    lost = len(task.actions) - len(log.starts)
    broken = len(task.constraints.broken_orders(tuple(log.starts))) + broken_times(task, log.starts)
    return 1 - (lost + broken) / demands


def broken_times(task: PlanTask, starts: Mapping[int, int]) -> int:
    """How many demands on times are violated: bounds, and that a call starts when the ones before have ended.

    Times of actions that were not executed are violated too.
    """
    if task.minutes is None:
        return 0
    clock, overlaps = OPENS, len(task.actions) - len(starts)
    for action, start in starts.items():
        overlaps += start < clock
        clock = max(clock, start + task.minutes[action])
    late = sum(
        each not in starts or starts[each] + task.minutes[each] > minute for each, minute in task.constraints.ends_by
    )
    early = sum(each not in starts or starts[each] < minute for each, minute in task.constraints.starts_from)
    return overlaps + late + early
