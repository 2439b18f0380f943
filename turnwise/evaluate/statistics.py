"""Statistics for few, costly runs: robust means, intervals, comparisons. Plain numpy; generators are explicit."""

from __future__ import annotations

from math import comb, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from turnwise.evaluate.student_t import student_t_quantile


class Interval(NamedTuple):
    """A confidence interval: `low, high = wilson_interval(0.8, 100)`."""

    low: float
    high: float


def wilson_interval(rate: float, trials: float, *, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a share; sound at 0 and at 1, where the plain one has no width."""
    if not (trials > 0 and 0 <= rate <= 1):
        raise ValueError(f"a rate in [0, 1] of at least one trial is needed, got {rate} of {trials}")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = (rate + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z * sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2)) / (1 + z**2 / trials)
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def mean_interval(values: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Student's t interval of a mean: x̄ ± t · s / √n."""
    sample = _sample(values, at_least=2)
    mean, half = sample.mean(), sample.std(ddof=1) / sqrt(len(sample))
    half *= student_t_quantile((1 + confidence) / 2, len(sample) - 1)
    return Interval(float(mean - half), float(mean + half))


def pass_at_k(tries: int, successes: int, k: int) -> float:
    """Chance that one of k tries succeeds, without bias from n ≥ k tries: 1 - C(n - c, k) / C(n, k)."""
    if not (0 <= successes <= tries and 1 <= k <= tries):
        raise ValueError(f"pass@{k} needs at least {k} tries and no more successes than tries, got {successes}/{tries}")
    return 1 - comb(tries - successes, k) / comb(tries, k)


def _sample(values: ArrayLike, *, at_least: int = 1) -> np.ndarray:
    sample = np.asarray(values, dtype=float)
    if sample.ndim != 1 or len(sample) < at_least:
        raise ValueError(f"at least {at_least} numbers in a row are needed, got shape {sample.shape}")
    if not np.isfinite(sample).all():
        raise ValueError("a statistic of NaN or infinite numbers means nothing; leave those runs out first")
    return sample
