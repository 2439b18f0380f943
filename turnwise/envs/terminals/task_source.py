"""Where the tasks of `terminal/tasks` come from: folders of ours, of Harbor and Terminal-Bench, or families."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from turnwise.envs.tasks.answers import split_of
from turnwise.envs.terminals.families.family_table import generated_tasks, names_families
from turnwise.envs.terminals.harbor_tasks import CANARY, is_harbor, read_harbor_tasks
from turnwise.envs.terminals.terminal_task import TerminalTask, read_tasks


def tasks_of_split(path: str, complexity: Sequence[int], split: str) -> tuple[TerminalTask, ...]:
    """The tasks of a folder that belong to a split, by name; those for evaluation alone are all in `test`."""
    found = _read(path)
    chosen = tuple(task for task in found if not complexity or task.complexity in complexity)
    of_split = tuple(task for task in chosen if split_of_task(task) == split)
    if not of_split:
        where = f"of complexity {', '.join(map(str, complexity))} " if complexity else ""
        splits = sorted({split_of_task(task) for task in chosen})
        there = f"they are all in {' and '.join(splits)}" if splits else "choose another complexity"
        raise ValueError(f"tasks: none of the {len(found)} in {path} {where}belongs to the split {split}; {there}")
    return of_split


@lru_cache(maxsize=8)
def _read(path: str) -> tuple[TerminalTask, ...]:
    place = Path(path)
    if names_families(path) or not place.is_dir():
        return generated_tasks(path)
    return tuple(read_harbor_tasks(place) if any(map(is_harbor, place.iterdir())) else read_tasks(place))


def split_of_task(task: TerminalTask) -> str:
    """The split a task belongs to, by its name; one with a canary against training is for tests."""
    texts = (task.instruction, task.setup, task.final_test)
    return "test" if any(CANARY in text for text in texts) else split_of(task.name)
