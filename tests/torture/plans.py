"""Random sets of constraints, with and without times: the built-in solver, Z3 and all permutations must agree."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import permutations
from random import Random

from tests.torture.tally import Tally
from turnwise.envs.plans.orderings import Constraints
from turnwise.envs.plans.plan_solvers import BuiltInSolver, Durations, Order, Solver, earliest_start
from turnwise.envs.plans.z3_solver import Z3Solver

COUNT = 10_000
_LARGEST = 6


def campaign(*, count: int, seed: int, solver: Solver | None = None) -> Tally:
    """Ask every solver for a plan of every set. Where Z3 is not installed, every outcome says so."""
    rng, tally = Random(f"plans:{seed}"), Tally()
    has_z3 = find_spec("z3") is not None
    solvers = {"built-in": solver or BuiltInSolver(), **({"z3": Z3Solver()} if has_z3 else {})}
    missing = "" if has_z3 else ", z3 not installed"
    for number in range(count):
        constraints, durations = draw_constraints(rng, timed=number % 2 == 1)
        exists = any(is_plan(order, constraints, durations) for order in permutations(sorted(constraints.actions)))
        wrong = [name for name, each in solvers.items() if not _agrees(each, constraints, durations, exists)]
        if wrong:
            tally.fail(f"{' and '.join(wrong)} on {constraints} with durations {durations}")
        else:
            tally.note(f"{'timed' if durations else 'order'}, {'a plan' if exists else 'no plan'}{missing}")
    return tally


def draw_constraints(rng: Random, *, timed: bool) -> tuple[Constraints, Durations | None]:
    """Any set at all: about half of them have a plan."""
    count = rng.randint(2, _LARGEST)
    actions = frozenset(range(count))
    pairs = [(rng.randrange(count), rng.randrange(count)) for _ in range(rng.randint(0, 2 * count))]
    orders = frozenset(pair for pair in pairs if pair[0] != pair[1])
    if not timed:
        return Constraints(actions=actions, orders=orders), None
    durations = {action: rng.choice((30, 60, 90)) for action in actions}
    ends, starts = (
        frozenset((rng.randrange(count), rng.randrange(30, 60 * count, 30)) for _ in range(rng.randint(0, count)))
        for _ in range(2)
    )
    return Constraints(actions=actions, orders=orders, ends_by=ends, starts_from=starts), durations


def is_plan(order: Order, constraints: Constraints, durations: Durations | None) -> bool:
    """Whether an order satisfies the constraints if every action starts as soon as it may."""
    if constraints.broken_orders(order) or durations is None:
        return not constraints.broken_orders(order)
    clock = 0
    for action in order:
        clock = earliest_start(constraints, action, clock) + durations[action]
        if clock > constraints.latest_end(action):
            return False
    return True


def _agrees(solver: Solver, constraints: Constraints, durations: Durations | None, exists: bool) -> bool:
    order = solver.solve(constraints, durations)
    if order is None:
        return not exists
    return set(order) == constraints.actions and is_plan(order, constraints, durations)
