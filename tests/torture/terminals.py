"""Generated terminal tasks: the gates must let every sound one through and hold every flawed one back."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.torture.tally import Tally
from turnwise.envs.terminals.families.family_table import COMPLEXITIES, FULL, FamilyAuthor, draft_names, usable
from turnwise.envs.terminals.flawed_tasks import FLAWS
from turnwise.envs.terminals.terminal_world import check_worlds
from turnwise.evaluate.task_solvers import scripted_solver
from turnwise.evaluate.terminal_stages import Gate, Solver, Stages

COUNT = 1200
"""Five in six are sound: gate 3 is no-op success 0, gate 4 is oracle success 1."""


def campaign(*, count: int, seed: int, solver: Solver | None = None) -> Tally:
    """Draft tasks of all families, every sixth with a flaw, and look at the gate that each ends at."""
    tally = Tally()
    try:
        check_worlds()
    except ValueError as error:
        tally.skipped = str(error)
        return tally
    flaws = [*FLAWS]
    names = draft_names(count, usable(FULL)[0], COMPLEXITIES, first_seed=1000 * seed)
    drafts = [
        f"{name}-{flaws[place // 6 % len(flaws)]}" if place % 6 == 5 else name for place, name in enumerate(names)
    ]
    with tempfile.TemporaryDirectory(prefix="turnwise-terminals-") as folder:
        stages = Stages(author=FamilyAuthor(), solver=solver or scripted_solver(), tries=1, k=1)
        gates = stages.run(drafts, Path(folder), jobs=2)
    for gate in {gate.name: gate for gate in gates}.values():
        _judge(tally, gate, flawed=gate.name.endswith(tuple(flaws)))
    return tally


def _judge(tally: Tally, last: Gate, *, flawed: bool) -> None:
    if last.ok == flawed:
        tally.fail(f"{last.name} {'passed all gates' if flawed else f'was removed by {last.stage}: {last.reason}'}")
    else:
        tally.note(f"flawed, removed by {last.stage}" if flawed else "sound")
