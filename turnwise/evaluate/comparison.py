"""Compare algorithms: each one's results over its seeds, their uncertainty, and the difference from the first."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from turnwise.evaluate.results import RunResult, read_result
from turnwise.evaluate.statistics import (
    WelchTest,
    bonferroni,
    bootstrap_interval,
    cohens_d,
    iqm,
    mean_interval,
    paired_difference,
    probability_of_improvement,
    welch_t,
)
from turnwise.guard.definition import COLLAPSE
from turnwise.runs.disk import write_whole
from turnwise.runs.journal import plain

SCHEMA = 1
FEW_RUNS = 10
"""Below this a percentile bootstrap is too narrow: for normal data its coverage is 75% (3 runs), 90% (5) and 93% (10)
instead of 95%."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number with its 95% interval; a single run has none."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The runs of one algorithm: their mean (Student's t interval) and interquartile mean (bootstrap interval)."""

    mean: Estimate
    iqm: Estimate


@dataclass(frozen=True, kw_only=True)
class Versus:
    """Final success of an algorithm against the first one's."""

    difference: Estimate
    """Mean difference over the seeds that both have, paired; Student's t interval."""
    improvement: Estimate
    """Chance that a run of this algorithm beats one of the first; bootstrap interval."""
    t: float
    freedom: float
    p: float
    """Welch's test, two-sided."""
    p_adjusted: float
    """After Bonferroni, for the number of algorithms compared with the first."""
    d: float
    """Cohen's: the difference in pooled standard deviations."""


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """One algorithm over its seeds."""

    label: str
    runs: tuple[RunResult, ...]
    final: Spread
    area: Spread
    collapsed: int
    clip_fraction: float | None
    gradient_tail: float | None
    """Median over runs, of the 99th percentile over the median of gradient norms."""
    explained_variance: float | None
    scale: float | None
    seconds: float
    """Mean wall time of a run."""
    versus: Versus | None
    """None for the first algorithm, and if either has a single run."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The whole comparison; `save` writes it as `comparison.json`."""

    baseline: str
    arms: tuple[ArmResult, ...]
    notes: tuple[str, ...]
    collapse_definition: str = COLLAPSE
    schema: int = SCHEMA

    def as_dict(self) -> dict[str, Any]:
        """What `comparison.json` holds; numbers that are not finite become None."""
        return plain(asdict(self), lambda _: None)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        write_whole(path, json.dumps(self.as_dict(), indent=1).encode() + b"\n")


def compare_folders(folders: Mapping[str, Sequence[str | Path]], *, seed: int = 0) -> Comparison:
    """Compare run folders by label; the first label is the baseline."""
    return compare_results(
        {label: [read_result(path) for path in paths] for label, paths in folders.items()}, seed=seed
    )


def compare_results(results: Mapping[str, Sequence[RunResult]], *, seed: int = 0) -> Comparison:
    """Compare runs by label; `seed` is the bootstrap's, so equal runs give an equal comparison."""
    empty = [label for label, runs in results.items() if not runs]
    if empty or not results:
        raise ValueError(f"there is no run of {', '.join(empty) or 'any algorithm'}; train it, or leave it out")
    generator = np.random.default_rng(seed)
    (baseline, first), *others = results.items()
    tests = {label: welch_t(_finals(runs), _finals(first)) for label, runs in others if min(len(first), len(runs)) > 1}
    adjusted = dict(zip(tests, bonferroni([test.p for test in tests.values()]), strict=True))
    versus = {label: _versus(first, results[label], test, adjusted[label], generator) for label, test in tests.items()}
    arms = [_arm(label, runs, versus.get(label), generator) for label, runs in results.items()]
    return Comparison(baseline=baseline, arms=tuple(arms), notes=tuple(_notes(results)))


def _versus(
    first: Sequence[RunResult],
    runs: Sequence[RunResult],
    test: WelchTest,
    p_adjusted: float,
    generator: np.random.Generator,
) -> Versus:
    ours, theirs = _finals(runs), _finals(first)
    return Versus(
        difference=_difference(first, runs),
        improvement=_bootstrapped(probability_of_improvement, ours, theirs, generator=generator),
        t=test.t,
        freedom=test.freedom,
        p=test.p,
        p_adjusted=p_adjusted,
        d=cohens_d(ours, theirs),
    )


def _arm(label: str, runs: Sequence[RunResult], versus: Versus | None, generator: np.random.Generator) -> ArmResult:
    return ArmResult(
        label=label,
        runs=tuple(runs),
        final=_spread(_finals(runs), generator),
        area=_spread([run.area for run in runs], generator),
        collapsed=sum(run.collapse is not None for run in runs),
        clip_fraction=_over_runs(fmean, [run.clip_fraction for run in runs]),
        gradient_tail=_over_runs(median, [run.gradient_tail for run in runs]),
        explained_variance=_over_runs(fmean, [run.explained_variance for run in runs]),
        scale=_over_runs(fmean, [run.scale for run in runs]),
        seconds=fmean(run.seconds for run in runs),
        versus=versus,
    )


def _finals(runs: Sequence[RunResult]) -> list[float]:
    return [run.final for run in runs]


def _spread(values: list[float], generator: np.random.Generator) -> Spread:
    if len(values) == 1:
        return Spread(mean=Estimate(value=values[0]), iqm=Estimate(value=values[0]))
    low, high = mean_interval(values)
    return Spread(
        mean=Estimate(value=fmean(values), low=low, high=high), iqm=_bootstrapped(iqm, values, generator=generator)
    )


def _bootstrapped(statistic: Callable[..., Any], *samples: list[float], generator: np.random.Generator) -> Estimate:
    low, high = bootstrap_interval(statistic, *samples, generator=generator)
    return Estimate(value=float(statistic(*samples)), low=low, high=high)


def _difference(first: Sequence[RunResult], runs: Sequence[RunResult]) -> Estimate:
    """Paired by seed if at least two seeds are common, else the plain difference of the means."""
    before, after = ({run.seed: run.final for run in arm} for arm in (first, runs))
    common = sorted(before.keys() & after.keys())
    if len(common) < 2:
        return Estimate(value=fmean(_finals(runs)) - fmean(_finals(first)))
    pairs = [after[seed] for seed in common], [before[seed] for seed in common]
    low, high = paired_difference(*pairs)
    return Estimate(value=fmean(pairs[0]) - fmean(pairs[1]), low=low, high=high)


def _over_runs(average: Callable[[list[float]], float], values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return average(known) if known else None


def _notes(results: Mapping[str, Sequence[RunResult]]) -> list[str]:
    """Caveats about the numbers."""
    notes: list[str] = []
    fewest = min(len(runs) for runs in results.values())
    if fewest < FEW_RUNS:
        notes.append(f"Bootstrap intervals of few runs ({fewest} here) are too narrow; {FEW_RUNS} or more are better.")
    if all(run.final == 0 for runs in results.values() for run in runs):
        notes.append("No run succeeded at its end, so the algorithms cannot be told apart.")
    seeds = {tuple(sorted(run.seed for run in runs)) for runs in results.values()}
    if len(seeds) > 1:
        notes.append("The algorithms did not run on the same seeds: differences are over the seeds in common.")
    budgets = {label: sorted({run.episodes for run in runs}) for label, runs in results.items()}
    if len({episodes for each in budgets.values() for episodes in each}) > 1:
        spent = ", ".join(f"{label} {' or '.join(map(str, each))}" for label, each in budgets.items())
        notes.append(f"The data budgets differ (episodes: {spent}): the comparison is not at equal cost.")
    return notes
