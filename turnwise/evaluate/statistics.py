"""Statistics for few, costly runs: robust means, intervals, comparisons. Plain numpy; generators are explicit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb, copysign, inf, sqrt
from numbers import Integral
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from turnwise.evaluate.student_t import student_t_quantile, student_t_tail


class Interval(NamedTuple):
    """A confidence interval: `low, high = wilson_interval(successes=80, trials=100)`."""

    low: float
    high: float


class WelchTest(NamedTuple):
    """Welch's test: the statistic, its degrees of freedom, and the two-sided p."""

    t: float
    freedom: float
    p: float


def iqm(values: ArrayLike) -> np.ndarray:
    """Interquartile mean along the last axis: the mean of the middle half, robust as a median and nearly as efficient.

    Exactly half of the weight is used: of five values the middle one counts whole and its neighbours three quarters
    each. For multiples of four that is `scipy.stats.trim_mean(values, 0.25)`, the form of rliable (Agarwal et al.
    2021); for other numbers the latter rounds the cut down and keeps more than half.
    """
    ordered = np.sort(np.asarray(values, dtype=float), axis=-1)
    count = ordered.shape[-1]
    if count == 0:
        raise ValueError("an interquartile mean needs at least one value")
    places = np.arange(count)
    weights = np.clip(np.minimum(places + 1, 0.75 * count) - np.maximum(places, 0.25 * count), 0, 1)
    return ordered @ weights / weights.sum()


def bootstrap_interval(
    statistic: Callable[..., ArrayLike],
    *samples: ArrayLike,
    generator: np.random.Generator,
    paired: bool = False,
    resamples: int = 5000,
    confidence: float = 0.95,
) -> Interval:
    """Percentile bootstrap of a statistic of one or more samples: `bootstrap_interval(iqm, runs, generator=generator)`.

    `statistic` works along the last axis. Samples are resampled independently; `paired` ones, such as two algorithms on
    equal seeds, are resampled together.
    """
    rows = [_sample(values) for values in samples]
    if paired and len({len(row) for row in rows}) > 1:
        raise ValueError(f"paired samples must be equally long, got {[len(row) for row in rows]}")
    choices = [generator.integers(0, len(row), (resamples, len(row))) for row in (rows[:1] if paired else rows)]
    drawn = [row[choice] for row, choice in zip(rows, choices * len(rows) if paired else choices, strict=True)]
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.asarray(statistic(*drawn)), [tail, 1 - tail])
    return Interval(float(low), float(high))


def mean_interval(values: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Student's t interval of a mean: x̄ ± t · s / √n."""
    sample = _sample(values, at_least=2)
    mean, half = sample.mean(), sample.std(ddof=1) / sqrt(len(sample))
    half *= student_t_quantile((1 + confidence) / 2, len(sample) - 1)
    return Interval(float(mean - half), float(mean + half))


def paired_difference(first: ArrayLike, second: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Student's t interval of the mean of `first - second`, paired, for example by seed."""
    one, other = _sample(first), _sample(second)
    if len(one) != len(other):
        raise ValueError(f"paired samples must be equally long, got {len(one)} and {len(other)}")
    return mean_interval(one - other, confidence=confidence)


def cautious_difference(first: ArrayLike, second: ArrayLike, *, span: float, confidence: float = 0.95) -> Interval:
    """Interval of the mean of `first - second`, paired by task, that keeps a width where all differences are equal.

    Two differences that nobody saw join the n that were, +span and -span, the largest that are possible:
    m ± t · s / √(n + 2), with mean m and deviation s of all n + 2 and Student's t of n - 1 degrees of freedom. For
    successes that is the interval of Bonett and Price (2012), with t in place of the normal quantile. It stays
    within ±span.
    """
    seen = _sample(first, at_least=2) - _sample(second, at_least=2)
    values = np.concatenate([seen, [span, -span]])
    half = values.std() / sqrt(len(values)) * student_t_quantile((1 + confidence) / 2, len(seen) - 1)
    low, high = np.clip([values.mean() - half, values.mean() + half], -span, span)
    return Interval(float(min(low, seen.mean())), float(max(high, seen.mean())))


def wilson_interval(
    *, trials: float, successes: int | None = None, rate: float | None = None, confidence: float = 0.95
) -> Interval:
    """Wilson's score interval of a share; valid at 0 and 1, where the plain interval has no width.

    `wilson_interval(successes=80, trials=100)`, or `rate=0.8` where trials are weighed and there is no count.
    """
    share = _share(successes, rate, trials)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z * sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2)) / (1 + z**2 / trials)
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def _share(successes: int | None, rate: float | None, trials: float) -> float:
    """A count or a rate as a share; mixing them up is an error: 1 of 10 is not 100%."""
    if (successes is None) == (rate is None) or not trials > 0:
        raise ValueError(f"give successes= (a count) or rate= (a share), of at least one trial; got {trials} trials")
    if successes is not None:
        if not 0 <= successes <= trials or successes != int(successes):
            raise ValueError(f"successes={successes} is not a count among {trials} trials; give a share as rate=")
        return successes / trials
    if isinstance(rate, Integral) or rate is None or not 0 <= rate <= 1:
        raise ValueError(f"rate={rate} is not a share such as 0.8 or 1.0; give a count as successes=")
    return float(rate)


def probability_of_improvement(first: ArrayLike, second: ArrayLike) -> np.ndarray:
    """P(X > Y) + P(X = Y) / 2 for a run X of `first` and a run Y of `second`, along the last axis."""
    one, other = np.asarray(first, dtype=float)[..., :, None], np.asarray(second, dtype=float)[..., None, :]
    return ((one > other) + 0.5 * (one == other)).mean(axis=(-2, -1))


def welch_t(first: ArrayLike, second: ArrayLike) -> WelchTest:
    """Welch's t test that two means are equal, for samples of unequal variance."""
    one, other = _sample(first, at_least=2), _sample(second, at_least=2)
    parts = np.array([sample.var(ddof=1) / len(sample) for sample in (one, other)])
    difference, error = float(one.mean() - other.mean()), sqrt(parts.sum())
    if error == 0:  # two constants either differ or not; degrees of freedom do not matter
        return WelchTest(copysign(inf, difference), 1.0, 0.0) if difference else WelchTest(0.0, 1.0, 1.0)
    shares = parts / parts.sum()
    freedom = 1 / float((shares**2 / [len(one) - 1, len(other) - 1]).sum())
    t = difference / error
    return WelchTest(t, freedom, 2 * student_t_tail(abs(t), freedom))


def bonferroni(p_values: Sequence[float]) -> list[float]:
    """Each p times the number of comparisons, at most 1."""
    return [min(1.0, p * len(p_values)) for p in p_values]


def cohens_d(first: ArrayLike, second: ArrayLike) -> float:
    """Difference of the means in pooled standard deviations; infinite if neither sample varies."""
    one, other = _sample(first, at_least=2), _sample(second, at_least=2)
    squares = one.var() * len(one) + other.var() * len(other)
    difference, spread = float(one.mean() - other.mean()), sqrt(squares / (len(one) + len(other) - 2))
    if spread == 0:
        return copysign(inf, difference) if difference else 0.0
    return difference / spread


def pass_at_k(tries: int, successes: int, k: int) -> float:
    """Chance that one of k tries succeeds, without bias from n ≥ k tries: 1 - C(n - c, k) / C(n, k)."""
    if not (0 <= successes <= tries and 1 <= k <= tries):
        raise ValueError(f"pass@{k} needs at least {k} tries and no more successes than tries, got {successes}/{tries}")
    return 1 - comb(tries - successes, k) / comb(tries, k)


def area_under_curve(steps: ArrayLike, values: ArrayLike) -> float:
    """Mean of a curve over training, by the trapezoid rule; evaluations need not be evenly spaced."""
    at, curve = _sample(steps), _sample(values)
    if len(at) != len(curve) or (np.diff(at) <= 0).any():
        raise ValueError("a curve needs one value per step, at increasing steps")
    return float(np.trapezoid(curve, at) / (at[-1] - at[0])) if len(at) > 1 else float(curve[0])


def tail_ratio(peaks: ArrayLike, typical: ArrayLike, *, quantile: float = 0.99) -> float:
    """How far the tail reaches: a high quantile of `peaks` over the median of `typical` (often the same numbers)."""
    middle = float(np.median(_sample(typical)))
    return float(np.quantile(_sample(peaks), quantile)) / middle if middle else inf


def _sample(values: ArrayLike, *, at_least: int = 1) -> np.ndarray:
    sample = np.asarray(values, dtype=float)
    if sample.ndim != 1 or len(sample) < at_least:
        raise ValueError(f"a row of numbers, at least {at_least}, is needed; got shape {sample.shape}")
    if not np.isfinite(sample).all():
        raise ValueError("a statistic needs finite numbers; leave out runs with NaN or infinite values first")
    return sample
