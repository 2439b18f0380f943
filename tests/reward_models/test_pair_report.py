"""The report on held-out pairs: numbers by hand."""

import math

import pytest

from turnwise.evaluate.statistics import wilson_interval
from turnwise.reward_models.pair_report import PairReport, ScoredPair, scored_pairs
from turnwise.types import Group, StopReason, Trajectory, Turn


def pair(margin: float, longer: int = 0, source: str = "") -> ScoredPair:
    return ScoredPair(chosen=margin, rejected=0.0, chosen_length=10 + longer, rejected_length=10, source=source)


def logit(probability: float) -> float:
    return math.log(probability / (1 - probability))


def test_accuracy_counts_ties_half_and_has_an_interval() -> None:
    report = PairReport.of([pair(1.0), pair(2.0), pair(-1.0), pair(0.0)])
    assert report.all.accuracy == 0.625
    assert (report.all.low, report.all.high) == pytest.approx(wilson_interval(rate=0.625, trials=4))
    assert report.margin == 0.5


def test_calibration_compares_how_sure_with_how_often_right() -> None:
    sure_and_right, sure_and_wrong = [pair(logit(0.95))] * 3, [pair(-logit(0.95))]
    unsure = [pair(logit(0.55)), pair(-logit(0.55))]
    report = PairReport.of([*sure_and_right, *sure_and_wrong, *unsure])
    assert [(row.pairs, row.accuracy) for row in report.reliability] == [(2, 0.5), (4, 0.75)]
    assert [row.confidence for row in report.reliability] == pytest.approx([0.55, 0.95])
    assert report.calibration_error == pytest.approx((2 * 0.05 + 4 * 0.2) / 6)


def test_length_bias_is_seen_in_the_correlation_and_in_both_shares() -> None:
    biased = PairReport.of([pair(2.0, longer=4), pair(-1.0, longer=-2), pair(1.0, longer=2)])
    assert biased.length_correlation == pytest.approx(1.0)
    assert (biased.longer_chosen.accuracy, biased.longer_rejected.accuracy) == (1.0, 0.0)
    fair = PairReport.of([pair(1.0, longer=3), pair(1.0, longer=-3)])
    assert fair.length_correlation == pytest.approx(0.0)
    assert PairReport.of([pair(1.0)]).length_correlation is None


def test_sources_are_reported_apart() -> None:
    report = PairReport.of([pair(1.0, source="a"), pair(-1.0, source="b"), pair(1.0, source="b")])
    assert {name: share.accuracy for name, share in report.by_source.items()} == {"a": 1.0, "b": 0.5}


def test_a_ranking_gives_all_pairs_that_differ() -> None:
    def answer(reward: float, length: int) -> Trajectory:
        turn = Turn(prompt_ids=[1], sampled_ids=[2] * length, reward=reward)
        return Trajectory(id="", turns=[turn], stop=StopReason.DONE, terminated=True)

    group = Group(id="g", trajectories=[answer(1.0, 1), answer(3.0, 2), answer(1.0, 3)])
    found = scored_pairs([group], [[0.1, 0.2, 0.3]], ["s"])
    assert [(each.chosen, each.rejected, each.longer) for each in found] == [(0.2, 0.1, 1), (0.2, 0.3, -1)]
