"""A study's rows by cell and seed, with the queries that criteria need."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from turnwise.evaluate.statistics import Interval, mean_interval
from turnwise.reproduce.claim import StudyScale
from turnwise.reproduce.criteria import OWN, SHORT, Criterion, is_evaluated
from turnwise.reproduce.plan import Cell, study_runs

Row = Mapping[str, Any]


def rows_on(task: str, rows: Sequence[Row]) -> list[Row]:
    """The rows of one task."""
    return [row for row in rows if row.get("task", "") == task]


class Table:
    """Rows of `results.json` by cell and seed."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._cells: dict[Cell, dict[int, Row]] = {}
        for row in rows:
            cell = Cell(arm=row["arm"], rate=row["rate"], updates=row["updates"], lag=row["lag"])
            self._cells.setdefault(cell, {})[row["seed"]] = row

    def seeds(self, cell: Cell) -> dict[int, Row]:
        """The cell's runs by seed."""
        return self._cells.get(cell, {})

    def finals(self, cell: Cell) -> dict[int, float]:
        """Held-out success at the end, by seed."""
        return self.values(cell, "success")

    def values(self, cell: Cell, metric: str, at: str = "last") -> dict[int, float]:
        """A metric by seed: of the `first`, `last` or `peak` evaluation, or its mean over the steps.

        Runs that do not have it are left out.
        """
        found = {seed: _value(row, metric, at) for seed, row in sorted(self.seeds(cell).items())}
        return {seed: value for seed, value in found.items() if value is not None}

    def compared(self, criterion: Criterion, cells: Sequence[Cell]) -> list[dict[int, float]]:
        """What a criterion judges: the numbers of its arm, and of what that is compared with."""
        at, other = "peak" if criterion.peak else "last", criterion.other or ""
        found = [self.values(cell, criterion.metric, at) for cell in cells]
        if other in OWN:
            found.append(self.values(cells[0], criterion.metric, OWN[other]))
        elif "/" in other:
            found.append(self.values(cells[0], other, at))
        return found

    def collapsed(self, cell: Cell) -> int:
        """How many runs of the cell collapsed."""
        return sum(row["collapse"] is not None for row in self.seeds(cell).values())

    def curve(self, scale: StudyScale, arm: str) -> dict[float, float]:
        """Mean success at the end by learning rate, under the stress test's number of updates."""
        cells = [cell for cell in self._cells if (cell.arm, cell.updates, cell.lag) == (arm, scale.updates, 0)]
        return {cell.rate: float(np.mean(list(self.finals(cell).values()))) for cell in sorted(cells)}

    def arms(self, scale: StudyScale) -> list[str]:
        """Arms with more than one learning rate."""
        names = dict.fromkeys(cell.arm for cell in self._cells)
        return [name for name in names if len(self.curve(scale, name)) > 1]


def final_interval(table: Table, cell: Cell, metric: str = "success") -> tuple[float, Interval] | None:
    """Mean and 95% interval of the cell's final values; success is between 0 and 1."""
    finals = list(table.values(cell, metric).values())
    if len(finals) < 2:
        return None
    low, high = mean_interval(finals)
    if metric == "success":
        low, high = max(low, 0.0), min(high, 1.0)
    return float(np.mean(finals)), Interval(low, high)


def missing_runs(scale: StudyScale, table: Table, cells: Collection[Cell]) -> str:
    """How many planned runs of these cells are missing, in words; empty if none."""
    planned = [run for run in study_runs(scale) if run.cell in cells]
    if {run.cell for run in planned} != set(cells):
        return "this scale has no such runs"
    missing = sum(run.seed not in table.seeds(run.cell) for run in planned)
    return f"{missing} of {len(planned)} runs are missing" if missing else ""


def _value(row: Row, metric: str, at: str) -> float | None:
    if (metric, at) == ("success", "last"):
        return row["final"]  # a run that stopped early keeps its last value
    name = SHORT.get(metric, metric)
    return row[at if is_evaluated(name) else "mean"].get(name)
