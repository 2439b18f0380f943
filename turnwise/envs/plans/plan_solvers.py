"""Is there a plan? A small solver that needs no package, how many plans there are, and why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import factorial
from typing import Protocol

from turnwise.envs.plans.orderings import Constraints

Order = tuple[int, ...]
"""All actions, the first one first."""
Durations = Mapping[int, int]
"""Minutes that each action takes."""
LARGEST = 9
"""Most actions of a request with times, and of a count of plans: both look at all subsets."""


class Solver(Protocol):
    """Finds plans."""

    def solve(self, constraints: Constraints, durations: Durations | None = None, *, start: int = 0) -> Order | None:
        """An order of all actions that satisfies the constraints, None if there is none.

        With durations, actions run one at a time from the minute `start` on. Without them, bounds on times are ignored.
        """
        ...


class BuiltInSolver:
    """Topological order; with durations, the earliest end of every set of actions.

    Among several plans without durations it finds the first in the order of the actions' numbers.
    """

    def solve(self, constraints: Constraints, durations: Durations | None = None, *, start: int = 0) -> Order | None:
        """An order of all actions, or None."""
        return _sorted(constraints) if durations is None else _timed(constraints, durations, start)


def earliest_start(constraints: Constraints, action: int, clock: int) -> int:
    """When an action may start if nothing else runs from `clock` on."""
    return max(clock, constraints.earliest_start(action))


def count_plans(constraints: Constraints) -> int:
    """The number of orders that satisfy the constraints between actions (linear extensions)."""
    _require_few(constraints)

    @cache
    def count(left: frozenset[int]) -> int:
        last = (each for each in left if not any(each in constraints.predecessors[other] for other in left))
        return sum(count(left - {each}) for each in last) if left else 1

    return count(constraints.actions)


def chance(constraints: Constraints) -> float:
    """How often a random order satisfies the constraints between actions: linear extensions / n!."""
    return count_plans(constraints) / factorial(len(constraints.actions))


def conflict(
    constraints: Constraints, solver: Solver, durations: Durations | None = None, *, start: int = 0
) -> Constraints:
    """A smallest part of constraints without a plan: it has none either, and leaving out any one gives one."""
    for name in ("orders", "ends_by", "starts_from"):
        for pair in sorted(getattr(constraints, name)):
            fewer = replace(constraints, **{name: getattr(constraints, name) - {pair}})
            constraints = fewer if solver.solve(fewer, durations, start=start) is None else constraints
    return constraints


def _sorted(constraints: Constraints) -> Order | None:
    """Kahn's algorithm."""
    done = list[int]()
    while len(done) < len(constraints.actions):
        ready = [each for each in constraints.actions.difference(done) if constraints.predecessors[each] <= {*done}]
        if not ready:
            return None
        done.append(min(ready))
    return tuple(done)


def _timed(constraints: Constraints, durations: Durations, start: int) -> Order | None:
    """Of two orders of the same actions the one that ends earlier is never worse for what follows."""
    _require_few(constraints)
    ends: dict[frozenset[int], tuple[int, Order]] = {frozenset(): (start, ())}
    for _ in constraints.actions:
        longer: dict[frozenset[int], tuple[int, Order]] = {}
        for done, (clock, order) in ends.items():
            for each in constraints.actions - done:
                end = earliest_start(constraints, each, clock) + durations[each]
                if constraints.predecessors[each] <= done and end <= constraints.latest_end(each):
                    known = longer.get(done | {each})
                    candidate = (end, (*order, each))
                    longer[done | {each}] = candidate if known is None else min(known, candidate)
        ends = longer
    return ends[constraints.actions][1] if constraints.actions in ends else None


def _require_few(constraints: Constraints) -> None:
    if len(constraints.actions) > LARGEST:
        raise ValueError(
            f"{len(constraints.actions)} actions are too many to look at all subsets; take at most {LARGEST}"
        )
