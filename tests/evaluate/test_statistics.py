import math

import numpy as np
import pytest

pytest.importorskip("scipy", reason="needs turnwise[dev]")
pytest.importorskip("statsmodels", reason="needs turnwise[dev]")

from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

from turnwise.evaluate.statistics import (
    area_under_curve,
    bonferroni,
    bootstrap_interval,
    cautious_difference,
    cohens_d,
    iqm,
    mean_interval,
    paired_difference,
    pass_at_k,
    probability_of_improvement,
    tail_ratio,
    welch_t,
    wilson_interval,
)

FIRST = [0.81, 0.79, 0.90, 0.12, 0.85, 0.77, 0.88]
SECOND = [0.20, 0.52, 0.31, 0.64, 0.05]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5, 8, 4, 38, 8, 6, 9, 7, 7, 3, 1, 6], 6.5),  # the middle six of twelve
        ([1, 3, 5, 7, 9, 11, 13, 15, 17], 9.0),
        ([0.0, 1.0, 2.0, 6.0, 100.0], (0.75 * 1 + 2 + 0.75 * 6) / 2.5),  # not symmetric: the fractions matter
        ([3.0], 3.0),
        ([1.0, 2.0], 1.5),
        ([0.0, 0.0, 9.0], (0.25 * 0 + 1 * 0 + 0.25 * 9) / 1.5),
    ],
)
def test_iqm_of_known_numbers(values: list[float], expected: float):
    assert float(iqm(values)) == pytest.approx(expected, abs=1e-12)


def test_iqm_is_the_trimmed_mean_of_scipy_for_multiples_of_four_and_only_there():
    generator = np.random.default_rng(0)
    for count in (4, 8, 20, 64):
        values = generator.lognormal(size=count)
        assert float(iqm(values)) == pytest.approx(stats.trim_mean(values, 0.25), rel=1e-12)
    uneven = generator.lognormal(size=10)
    assert float(iqm(uneven)) != pytest.approx(stats.trim_mean(uneven, 0.25), rel=1e-3)


def test_iqm_goes_along_the_last_axis():
    table = np.random.default_rng(1).normal(size=(3, 7))
    assert iqm(table) == pytest.approx([float(iqm(row)) for row in table])


def test_iqm_ignores_one_dead_run_of_eight():
    assert float(iqm([0.8] * 7 + [0.0])) == pytest.approx(0.8)


@pytest.mark.parametrize("paired", [False, True])
def test_bootstrap_interval_is_scipys_percentile_interval(paired: bool):
    first, second = FIRST[:5], SECOND

    def difference(x, y, axis=-1):
        return np.mean(x, axis=axis) - np.mean(y, axis=axis)

    ours = bootstrap_interval(
        difference, first, second, generator=np.random.default_rng(3), paired=paired, resamples=999
    )
    theirs = stats.bootstrap(
        (np.array(first), np.array(second)),
        difference,
        n_resamples=999,
        method="percentile",
        paired=paired,
        vectorized=True,
        rng=np.random.default_rng(3),
    ).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_bootstrap_of_paired_samples_knows_that_a_common_offset_cancels():
    seeds = np.linspace(0, 1, 10)

    def difference(x, y):
        return x.mean(-1) - y.mean(-1)

    generator = np.random.default_rng(0)
    together = bootstrap_interval(difference, seeds + 0.1, seeds, generator=generator, paired=True)
    apart = bootstrap_interval(difference, seeds + 0.1, seeds, generator=generator)
    assert together == pytest.approx((0.1, 0.1))
    assert apart.low < 0 < apart.high


def test_bootstrap_interval_of_the_iqm_covers_the_truth():
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        low, high = bootstrap_interval(iqm, generator.normal(size=30), generator=generator, resamples=400)
        covered += low <= 0 <= high
    assert 0.89 <= covered / 300 <= 0.99


def test_mean_interval_is_that_of_statsmodels_and_by_hand():
    assert mean_interval(FIRST) == pytest.approx(DescrStatsW(FIRST).tconfint_mean(), abs=1e-10)
    assert mean_interval([1.0, 3.0], confidence=0.5) == pytest.approx((1.0, 3.0))  # t(0.75, 1) = 1, s / √2 = 1


@pytest.mark.parametrize("tasks", [4, 12, 60])
@pytest.mark.parametrize(("rates", "shared"), [((0.5, 0.5), 0.0), ((0.9, 0.5), 0.5), ((0.97, 0.95), 0.8)])
def test_the_cautious_interval_of_a_difference_covers_the_truth(tasks, rates, shared):
    generator, covered = np.random.default_rng(tasks), 0
    for _ in range(1000):
        luck = generator.random((2, tasks))
        luck[1] = np.where(generator.random(tasks) < shared, luck[0], luck[1])
        low, high = cautious_difference(luck[0] < rates[0], luck[1] < rates[1], span=1)
        covered += low <= rates[0] - rates[1] <= high
    assert covered >= 940


def test_paired_difference_is_the_interval_of_scipys_paired_test():
    interval = stats.ttest_rel(FIRST[:5], SECOND).confidence_interval(0.9)
    assert paired_difference(FIRST[:5], SECOND, confidence=0.9) == pytest.approx(tuple(interval), abs=1e-10)


@pytest.mark.parametrize(("successes", "trials"), [(0, 5), (3, 5), (5, 5), (212, 256)])
def test_wilson_interval_is_that_of_statsmodels(successes: int, trials: int):
    expected = proportion_confint(successes, trials, alpha=0.1, method="wilson")
    by_count = wilson_interval(successes=successes, trials=trials, confidence=0.9)
    by_rate = wilson_interval(rate=successes / trials, trials=trials, confidence=0.9)
    assert by_count == by_rate == pytest.approx(expected, abs=1e-12)


def test_wilson_interval_never_takes_a_count_for_a_rate():
    one = wilson_interval(successes=1, trials=10)
    assert one == pytest.approx(proportion_confint(1, 10, method="wilson"), abs=1e-9)
    assert wilson_interval(rate=1.0, trials=10).high == 1.0
    with pytest.raises(TypeError):
        wilson_interval(1, 10)  # pyright: ignore[reportCallIssue]
    for count in (1, np.int64(1), True, 7.0, math.nan):
        with pytest.raises(ValueError, match="give a count as successes="):
            wilson_interval(rate=count, trials=10)  # pyright: ignore[reportArgumentType]
    for rate in (0.8, 11, -1, math.nan):
        with pytest.raises(ValueError, match="give a share as rate="):
            wilson_interval(successes=rate, trials=10)  # pyright: ignore[reportArgumentType]
    for nothing in ({}, {"successes": 1, "rate": 0.1}):
        with pytest.raises(ValueError, match=r"give successes= .* or rate="):
            wilson_interval(trials=10, **nothing)


def test_probability_of_improvement_is_mann_whitneys_u_over_the_pairs():
    ties = ([1.0, 2.0, 2.0, 5.0], [2.0, 0.0, 3.0])
    for first, second in ((FIRST, SECOND), ties):
        expected = stats.mannwhitneyu(first, second).statistic / (len(first) * len(second))
        assert float(probability_of_improvement(first, second)) == pytest.approx(expected, abs=1e-12)
    assert float(probability_of_improvement([1.0, 2.0], [0.0, 2.0])) == (1 + 0 + 1 + 0.5) / 4


def test_probability_of_improvement_can_be_bootstrapped():
    low, high = bootstrap_interval(
        probability_of_improvement, FIRST, SECOND, generator=np.random.default_rng(0), resamples=2000
    )
    assert 0.5 < low < float(probability_of_improvement(FIRST, SECOND)) < high <= 1


@pytest.mark.parametrize("second", [SECOND, FIRST, [0.1, 0.9], [1e3, 1e3 + 1, 1e3 - 1]])
def test_welch_t_is_that_of_scipy_and_statsmodels(second: list[float]):
    ours, theirs = welch_t(FIRST, second), stats.ttest_ind(FIRST, second, equal_var=False)
    assert (ours.t, ours.p) == pytest.approx(tuple(theirs), abs=1e-10)
    again = CompareMeans.from_data(FIRST, second).ttest_ind(usevar="unequal")
    assert ours == pytest.approx((again[0], again[2], again[1]), abs=1e-10)


def test_welch_t_of_constants():
    assert welch_t([0.0, 0.0], [0.0, 0.0, 0.0]).p == 1.0
    assert welch_t([0.0, 0.0], [1.0, 1.0]) == (-math.inf, 1.0, 0.0)


def test_bonferroni_is_that_of_statsmodels():
    p_values = [0.001, 0.02, 0.04, 0.5]
    assert bonferroni(p_values) == pytest.approx(multipletests(p_values, method="bonferroni")[1])


def test_cohens_d_by_hand():
    # Means 2 and 5; squares of deviations 2 and 8; pooled variance 10 / 4.
    assert cohens_d([1, 2, 3], [3, 5, 7]) == pytest.approx(-3 / math.sqrt(2.5))
    assert cohens_d([1, 1], [1, 1]) == 0.0
    assert cohens_d([1, 1], [0, 0]) == math.inf
    t = float(np.asarray(stats.ttest_ind(FIRST, SECOND))[0])  # the pooled test: d times a function of the counts
    assert cohens_d(FIRST, SECOND) == pytest.approx(t * math.sqrt(1 / len(FIRST) + 1 / len(SECOND)))


def test_pass_at_k_is_the_share_of_subsets_that_hold_a_success():
    assert pass_at_k(5, 2, 1) == pytest.approx(0.4)
    assert pass_at_k(5, 2, 2) == pytest.approx(7 / 10)
    assert pass_at_k(5, 2, 4) == 1.0
    assert pass_at_k(10, 3, 4) == pytest.approx(1 - stats.hypergeom.pmf(0, 10, 3, 4))
    assert pass_at_k(4, 0, 4) == 0.0
    with pytest.raises(ValueError, match="at least 5 tries"):
        pass_at_k(4, 1, 5)


def test_area_under_curve_weighs_by_the_steps_between_evaluations():
    assert area_under_curve([0, 10, 40], [0.0, 1.0, 1.0]) == pytest.approx((5 + 30) / 40)
    assert area_under_curve([7], [0.3]) == 0.3
    with pytest.raises(ValueError, match="increasing"):
        area_under_curve([0, 10, 10], [0.0, 1.0, 1.0])


def test_tail_ratio_by_hand():
    assert tail_ratio(range(1, 102), range(1, 102)) == pytest.approx(100 / 51)
    assert tail_ratio([1, 2, 30], [1, 2, 3], quantile=1.0) == 15
    assert tail_ratio([1.0], [0.0]) == math.inf


@pytest.mark.parametrize("statistic", [mean_interval, lambda x: welch_t(x, SECOND), lambda x: cohens_d(SECOND, x)])
def test_bad_samples_are_refused(statistic):
    with pytest.raises(ValueError, match="at least 2"):
        statistic([1.0])
    with pytest.raises(ValueError, match="NaN"):
        statistic([1.0, math.nan])
