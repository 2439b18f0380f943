"""A claim's own criteria: a mean over seeds, or a difference paired by seed, compared with a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import fmean
from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

from turnwise.evaluate.statistics import Interval, mean_interval
from turnwise.words import counted

Metric = Literal["success", "turns", "reward"]
COLUMNS: Mapping[Metric, str] = {"success": "final", "turns": "final_turns", "reward": "final_reward"}
"""Where a row of `results.json` holds the metric."""
_FEWEST = 3  # seeds: an interval of two says almost nothing
Outcome = Literal["pass", "fail", "not decided"]


class Criterion(BaseModel):
    """One bound: `{arm: rebn-undiscounted, minus: rebn, metric: turns, at_least: 0.5}`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    arm: str
    minus: str | None = None
    """Judge the difference from this other arm on the same seeds; None: the arm alone."""
    metric: Metric
    """Of the last held-out evaluation."""
    at_least: float | None = None
    at_most: float | None = None
    decides: bool = True
    """Whether it decides the claim."""
    part: str = ""
    """Which of a paper's claims it belongs to, if there are several."""

    @model_validator(mode="after")
    def _sensible(self) -> Criterion:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("a criterion has either at_least or at_most; give one of them")
        if self.minus == self.arm:
            raise ValueError(f"{self.arm!r} minus itself is always 0; compare it with another arm")
        return self

    @property
    def arms(self) -> list[str]:
        """The arms whose runs it reads."""
        return [self.arm] if self.minus is None else [self.arm, self.minus]

    @property
    def name(self) -> str:
        """`turns of rebn-undiscounted minus rebn at least 0.5`."""
        bound = f"at most {self.at_most:g}" if self.at_least is None else f"at least {self.at_least:g}"
        return f"{self.metric} of {' minus '.join(self.arms)} {bound}"

    def judge(self, values: Sequence[Mapping[int, float]]) -> tuple[Outcome, str]:
        """The outcome and its numbers, from the metric by seed of each of its arms.

        Student's 95% interval decides: it is on the right side of the bound, on the wrong side, or spans it.
        """
        seeds = sorted(set.intersection(*(set(of_arm) for of_arm in values)))
        if len(seeds) < _FEWEST:
            return "not decided", f"too few seeds: {len(seeds)} of the {_FEWEST} that an interval needs"
        sample = [values[0][seed] - (values[1][seed] if len(values) > 1 else 0.0) for seed in seeds]
        interval = mean_interval(sample)
        text = f"{self._spell(fmean(sample))} (95% {self._spell(interval.low)} to {self._spell(interval.high)})"
        return self._side(interval), f"{text}, {counted(len(seeds), 'seed')}"

    def _side(self, interval: Interval) -> Outcome:
        low, high = (-inf if self.at_least is None else self.at_least), (inf if self.at_most is None else self.at_most)
        if low <= interval.low and interval.high <= high:
            return "pass"
        return "fail" if interval.high < low or high < interval.low else "not decided"

    def _spell(self, value: float) -> str:
        return f"{value:.2f}" if self.minus is None else f"{value:+.2f}"
