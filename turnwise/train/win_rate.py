"""How often present answers beat those before the first step, on the same held-out tasks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import fmean

from turnwise.evaluate.statistics import wilson_interval
from turnwise.ranks import on_first
from turnwise.rollout.scheduler import at_seats
from turnwise.runs.ledger import read_groups
from turnwise.sources.judged import Jury
from turnwise.types import Group, Trajectory


class WinRate:
    """Compares evaluations with the first one, by the recipe's judge: `WinRate(jury, file).measure(groups)`.

    `file` is where the run keeps its first answers, so that a resumed run compares with the same ones.
    """

    def __init__(self, jury: Jury, file: Path) -> None:
        self._jury, self._file = jury, file
        self._first: list[Group] | None = None

    def begin(self, groups: Sequence[Group]) -> None:
        """These are the first answers."""
        self._first = list(groups)

    def measure(self, groups: Sequence[Group], seats: Collection[str] | None = None) -> dict[str, float]:
        """`eval/win_rate` with its 95% interval, each task weighing the same; empty without tasks to compare."""
        if self._first is None:
            self._first = on_first(self._jury.ranks, self._read)
        first = {each.id: each for group in at_seats(self._first, seats) for each in group.trajectories}
        tasks = [[(each, first[each.id]) for each in group.trajectories if each.id in first] for group in groups]
        tasks = [sound for task in tasks if (sound := [pair for pair in task if all(map(_is_sound, pair))])]
        if not tasks:
            return {}
        chances = iter(self._jury.compare([pair for task in tasks for pair in task]))
        rate = fmean(fmean(next(chances) for _ in task) for task in tasks)
        low, high = wilson_interval(rate=rate, trials=len(tasks))
        return {"eval/win_rate": rate, "eval/win_rate_low": low, "eval/win_rate_high": high}

    def _read(self) -> list[Group]:
        return read_groups(self._file) if self._file.is_file() else []


def _is_sound(trajectory: Trajectory) -> bool:
    return bool(trajectory.turns) and not trajectory.stop.is_failure
