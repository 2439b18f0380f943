"""A claim's own criteria: a mean over seeds, or a difference or ratio paired by seed, compared with a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import fmean
from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

from turnwise.evaluate.statistics import Interval, mean_interval
from turnwise.words import counted

OWN: Mapping[str, str] = {"start": "first", "peak": "peak"}
"""What stands for an arm in `minus` and `over`: another evaluation of the same runs, before their first step or with
most of the metric."""
SHORT: Mapping[str, str] = {"success": "eval/success", "turns": "eval/turns", "reward": "eval/reward"}
"""Short names of metrics."""
_FEWEST = 3  # seeds: an interval of two says almost nothing
Outcome = Literal["pass", "fail", "not decided"]


def is_evaluated(metric: str) -> bool:
    """Whether evaluations measure it: `eval/kl`, or that of one of several policies, `observer/eval/kl`."""
    return metric.startswith("eval/") or "/eval/" in metric


class Criterion(BaseModel):
    """One bound: `{arm: rebn-undiscounted, minus: rebn, metric: turns, at_least: 0.5}`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    arm: str
    minus: str | None = None
    """Judge the difference from this other arm on the same seeds, or from the runs' own `start` or `peak`."""
    over: str | None = None
    """Judge the ratio to it. Either may also name another metric of the same runs, such as `observer/eval/kl`."""
    metric: str
    """`success`, `turns` and `reward`, or any `eval/…` metric: of the last held-out evaluation. Any other metric of
    `metrics.jsonl`: its mean over the steps."""
    updates: int | None = None
    """Of the runs with so many updates per rollout; None: the stress test's."""
    peak: bool = False
    """Of the evaluation that has most of it, in place of the last."""
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
        if self.minus is not None and self.over is not None:
            raise ValueError("a criterion has either minus or over; give one of them")
        if self.minus == self.arm:
            raise ValueError(f"{self.arm!r} minus itself is always 0; compare it with another arm")
        if self.over == self.arm:
            raise ValueError(f"{self.arm!r} over itself is always 1; compare it with another arm")
        if (self.peak or self.other in OWN) and not self.is_held_out:
            raise ValueError(f"{self.metric} is a mean over steps, with no start and no peak; take an eval/… metric")
        return self

    @property
    def is_held_out(self) -> bool:
        """Whether evaluations measure the metric."""
        return self.metric in SHORT or is_evaluated(self.metric)

    @property
    def other(self) -> str | None:
        """What the arm is compared with."""
        return self.minus or self.over

    @property
    def arms(self) -> list[str]:
        """The arms whose runs it reads."""
        return [self.arm, *([] if self.other is None or self.other in OWN or "/" in self.other else [self.other])]

    @property
    def name(self) -> str:
        """`turns of rebn-undiscounted minus rebn at least 0.5`."""
        bound = f"at most {self.at_most:g}" if self.at_least is None else f"at least {self.at_least:g}"
        metric = f"peak of {self.metric}" if self.peak else self.metric
        compared = f" {'minus' if self.minus else 'over'} {self.other}" if self.other else ""
        stress = "" if self.updates is None else f" with {counted(self.updates, 'update')}"
        return f"{metric} of {self.arm}{compared}{stress} {bound}"

    def judge(self, values: Sequence[Mapping[int, float]]) -> tuple[Outcome, str]:
        """The outcome and its numbers, from the metric by seed: of the arm, and of what it is compared with.

        Student's 95% interval decides: it is on the right side of the bound, on the wrong side, or spans it.
        """
        seeds = sorted(set.intersection(*(set(of_arm) for of_arm in values)))
        if len(seeds) < _FEWEST:
            return "not decided", f"too few seeds: {len(seeds)} of the {_FEWEST} that an interval needs"
        sample = [self._compare(*(of_arm[seed] for of_arm in values)) for seed in seeds]
        interval = mean_interval(sample)
        text = f"{self._spell(fmean(sample))} (95% {self._spell(interval.low)} to {self._spell(interval.high)})"
        return self._side(interval), f"{text}, {counted(len(seeds), 'seed')}"

    def _compare(self, value: float, other: float = 0.0) -> float:
        if self.over is None:
            return value - other
        return value / other if other else inf

    def _side(self, interval: Interval) -> Outcome:
        low, high = (-inf if self.at_least is None else self.at_least), (inf if self.at_most is None else self.at_most)
        if low <= interval.low and interval.high <= high:
            return "pass"
        return "fail" if interval.high < low or high < interval.low else "not decided"

    def _spell(self, value: float) -> str:
        return f"{value:.2f}" if self.minus is None else f"{value:+.2f}"
