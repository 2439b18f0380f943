"""Plans by Z3, to check the built-in solver: `pip install 'turnwise[z3]'`."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from turnwise.envs.plans.orderings import Constraints
from turnwise.envs.plans.plan_solvers import Durations, Order


class Z3Solver:
    """An integer for the place or the start of each action, as PDoctor encodes requests."""

    def __init__(self) -> None:
        try:
            import z3  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            raise ValueError("Z3 is not installed; install it with: pip install 'turnwise[z3]'") from error
        self._z3: Any = z3

    def solve(self, constraints: Constraints, durations: Durations | None = None, *, start: int = 0) -> Order | None:
        """An order of all actions, or None."""
        solver = self._z3.Solver()
        starts = {each: self._z3.Int(f"start_{each}") for each in sorted(constraints.actions)}
        if durations is None:
            self._add_places(solver, starts)
        else:
            self._add_times(solver, starts, constraints, durations, start)
        length = dict.fromkeys(starts, 1) if durations is None else durations
        solver.add(*(starts[first] + length[first] <= starts[second] for first, second in constraints.orders))
        if solver.check() != self._z3.sat:
            return None
        model = solver.model()
        return tuple(sorted(starts, key=lambda each: model[starts[each]].as_long()))

    def _add_places(self, solver: Any, starts: dict[int, Any]) -> None:
        solver.add(self._z3.Distinct(*starts.values()))
        solver.add(*(self._z3.And(each >= 1, each <= len(starts)) for each in starts.values()))

    def _add_times(
        self, solver: Any, starts: dict[int, Any], constraints: Constraints, durations: Durations, start: int
    ) -> None:
        solver.add(*(each >= start for each in starts.values()))
        solver.add(*(starts[each] + durations[each] <= minute for each, minute in constraints.ends_by))
        solver.add(*(starts[each] >= minute for each, minute in constraints.starts_from))
        for one, other in combinations(starts, 2):
            before, after = (
                starts[first] + durations[first] <= starts[second] for first, second in ((one, other), (other, one))
            )
            solver.add(self._z3.Or(before, after))
