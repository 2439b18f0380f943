"""Who tries to solve a task for the filter: a script that slips, or an agent."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from threading import Lock
from typing import TYPE_CHECKING, Any

from turnwise.envs.terminals.terminal_task import TerminalTask
from turnwise.evaluate.terminal_stages import Solver, is_solved

if TYPE_CHECKING:
    from turnwise.evaluate.plan_tests import Play

TURNS = 16
"""Of one try, as in Endless Terminals."""
ENV, ANY = "terminal/tasks", "brief"
"""The environment, and what it holds beside the task that is given."""
_CHOOSING = ("tasks", "complexity", "split")
"""Options that choose among tasks."""


def scripted_solver(noise: float = 0.0) -> Solver:
    """Plays a task's own solution; each command is left out with the probability `noise`."""
    if not 0 <= noise < 1:
        raise ValueError(f"noise is {noise}; choose it from 0 to below 1")

    def solve(task: TerminalTask, tries: int) -> int:
        if not noise:  # all tries are equal
            return tries * is_solved(task, task.solution)
        return sum(is_solved(task, _slip(task, attempt, noise)) for attempt in range(tries))

    return solve


def playing_solver(play: Play, options: Mapping[str, Any] | None = None) -> Solver:
    """An agent that plays `terminal/tasks` with these options, one task at a time."""
    from turnwise.rollout.episode import EpisodeSpec  # a script does not wait for torch

    kept = {name: value for name, value in (options or {}).items() if name not in _CHOOSING}
    kwargs, one_at_a_time = {"turns": TURNS, **kept, "tasks": ANY}, Lock()

    def solve(task: TerminalTask, tries: int) -> int:
        given = task.as_dict()
        specs = [EpisodeSpec(env=ENV, kwargs=kwargs, task=given, index=attempt) for attempt in range(tries)]
        with one_at_a_time:
            return sum(trajectory.success for trajectory in play(specs))

    return solve


def _slip(task: TerminalTask, attempt: int, noise: float) -> list[str]:
    rng = Random(f"{task.name}:{attempt}")
    return [command for command in task.solution if rng.random() >= noise]
