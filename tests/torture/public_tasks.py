"""Public tasks of Harbor and Terminal-Bench: each must be unsolved at first, and solved by its own solution."""

from __future__ import annotations

import os
import random
import warnings
from pathlib import Path

from tests.torture.tally import Tally
from turnwise.envs.terminals.harbor_tasks import read_harbor_tasks
from turnwise.envs.terminals.terminal_task import TerminalTask
from turnwise.envs.terminals.terminal_world import check_worlds
from turnwise.evaluate.terminal_stages import is_solved

DATA = Path(__file__).parents[3] / "shared" / "data" / "terminal"
"""Where the collections are, unless TURNWISE_TASK_DATA names another folder."""
COUNT = 21
"""As many as load where a machine has the programs that they need."""
_PATIENT = 120.0


def campaign(*, count: int = COUNT, seed: int = 0) -> Tally:
    """Take `count` tasks of the collections: those that can run here."""
    tally = Tally()
    try:
        check_worlds()
    except ValueError as error:
        return Tally(skipped=str(error))
    data = Path(os.environ.get("TURNWISE_TASK_DATA") or DATA)
    tasks = [task for folder in sorted(data.glob("*/")) for task in _read(folder)]
    if not tasks:
        return Tally(skipped=f"no tasks in {data}; set TURNWISE_TASK_DATA to a folder of task collections")
    for task in random.Random(seed).sample(tasks, min(count, len(tasks))):
        if is_solved(task, ()):
            tally.fail(f"{task.name} is solved before anybody does anything")
        elif not is_solved(task, task.solution, seconds=_PATIENT):
            tally.fail(f"{task.name} is not solved by its own solution")
        else:
            tally.note("solved by its solution alone")
    return tally


def _read(folder: Path) -> list[TerminalTask]:
    """The tasks of a collection that can run here; none if the folder has tasks of another kind."""
    if not [*folder.glob("*/task.toml"), *folder.glob("*/task.yaml")]:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_harbor_tasks(folder)
