"""A metric compared with its past: the robust statistics behind the guard's signals."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from turnwise.guard.bounds import Crossing
from turnwise.guard.definition import LASTING, LOST, RECENT, SURE
from turnwise.runs.rows import Row, number

SPREAD = 16
"""Rows used to estimate the noise of a metric."""
_SURE_OF_SHARES = 5.0
"""How many spreads a share must fall by: its spread already allows for few episodes."""


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """What a signal saw: one sentence, the numbers behind it, and whether the run itself is in danger."""

    text: str
    evidence: dict[str, float]
    severe: bool = False


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A metric now, its median before, and how much it moves from step to step by chance."""

    name: str
    step: int
    now: float
    before: float
    spread: float

    def above(self, limit: float, *, sure: float = SURE) -> bool:
        """Whether it is above the limit, and rose by more than its own noise."""
        return self.now > limit and self.now - self.before > sure * self.spread

    def below(self, limit: float, *, sure: float = SURE) -> bool:
        """Whether it is below the limit, and fell by more than its own noise."""
        return self.now < limit and self.before - self.now > sure * self.spread

    def sighting(self, label: str, *, severe: bool = False) -> Sighting:
        """The reading as a sentence: "clip fraction 0.61 at step 22, 0.12 before"."""
        text = f"{label} {self.now:.3g} at step {self.step}, {self.before:.3g} before"
        return Sighting(text=text, evidence={self.name: self.now, "before": self.before}, severe=severe)


def beyond_bound(crossing: Crossing) -> Sighting:
    """A crossed bound as a finding, with the bound or the level before as evidence."""
    level = {"bound": crossing.bound.limit} if crossing.before is None else {"before": crossing.before}
    return Sighting(text=crossing.text, evidence={crossing.metric: crossing.now, **level}, severe=crossing.bound.severe)


def positive(rows: Sequence[Row], name: str) -> list[Row]:
    """The rows in which the metric is above zero: steps in which it was idle say nothing about its scale."""
    return [row for row in rows if (number(row, name) or 0) > 0]


def series(rows: Sequence[Row], name: str) -> list[float]:
    """The metric over the rows that have it."""
    return [value for row in rows if (value := number(row, name)) is not None]


def read(rows: Sequence[Row], row: Row, name: str) -> Reading | None:
    """The metric now against the rows before; None without enough history."""
    now, values = number(row, name), series(rows, name)
    if now is None or len(values) < RECENT:
        return None
    before = statistics.median(values[-RECENT:])
    return Reading(name=name, step=int(row["step"]), now=now, before=before, spread=step_noise(values[-SPREAD:]))


def step_noise(values: Sequence[float]) -> float:
    """Standard deviation of one value around a steady trend, from the steps between neighbours.

    The upper quartile of the deviations, not their mean, so that a single jump does not hide the next; widened for
    short histories, which may be calm by luck.
    """
    steps = [after - before for before, after in itertools.pairwise(values)]
    trend = statistics.median(steps)
    deviations = sorted(abs(step - trend) for step in steps)
    quartile = deviations[(3 * len(deviations)) // 4]
    return quartile / (1.15 * math.sqrt(2)) * (1 + 4 / len(steps))


def rate_error(rate: float, count: float) -> float:
    """Standard error of a share among `count` trials, never zero: none of 64 does not prove none."""
    smooth = (rate * count + 1) / (count + 2)
    return math.sqrt(smooth * (1 - smooth) / max(count, 1))


def read_rate(rows: Sequence[Row], row: Row, name: str) -> Reading | None:
    """A share of the episodes now against before; its spread is never below the sampling error of so few episodes."""
    reading = read(rows, row, name)
    if reading is None:
        return None
    error = rate_error(reading.before, row.get("rollout/episodes", 64))
    return replace(reading, spread=max(reading.spread, error))


def success_moved(rows: Sequence[Row], row: Row, *, up: bool) -> bool:
    """Whether success moved that way by more than its noise: then other moves are the agent learning, or dipping."""
    success = read_rate(rows, row, "rollout/success")
    return success is not None and (success.now - success.before) * (1 if up else -1) > success.spread


def lasts(rows: Sequence[Row], reading: Reading, limit: float) -> bool:
    """Whether the metric is above the limit now and was in one of the two steps before: one outlier is chance."""
    return reading.above(limit) and max(series(rows[-2:], reading.name), default=0.0) > limit


def medians(values: Sequence[float]) -> list[float]:
    """The running median: levels that a metric has held, not single lucky steps."""
    return [statistics.median(values[end - RECENT : end]) for end in range(RECENT, len(values) + 1)]


def slump(rows: Sequence[Row], row: Row, name: str) -> Reading | None:
    """A share that fell at once below half of its level, or stays for three steps below half of its best."""
    reading = read_rate(rows, row, name)
    if reading is not None and reading.below(LOST * reading.before, sure=_SURE_OF_SHARES):
        return reading
    return _lasting_slump(rows, row, name)


def _lasting_slump(rows: Sequence[Row], row: Row, name: str) -> Reading | None:
    # Runs die in their first steps too, so this needs no more history than one step before the three.
    values = series([*rows, row], name)
    if len(values) <= LASTING or number(row, name) is None:
        return None
    best = max([values[0], *medians(values)])
    error = rate_error(best, row.get("rollout/episodes", 64))
    now = Reading(name=name, step=int(row["step"]), now=max(values[-LASTING:]), before=best, spread=error)
    return replace(now, now=values[-1]) if now.below(LOST * best, sure=_SURE_OF_SHARES) else None
