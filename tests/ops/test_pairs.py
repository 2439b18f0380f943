"""Who is compared with whom, and what is reported about it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.ops.compared import PAIR, Answer, Units, groups_of, loss_of_units, packed
from turnwise.algorithm import Algorithm, preset
from turnwise.batch import Scores
from turnwise.ops.filters import best, extremes, merit, ties
from turnwise.ops.pairs import Members, Pairs, pair_measures
from turnwise.ops.pairs import merit as merit_of_members
from turnwise.types import Group


def answers(*rewards: float) -> list[Answer]:
    return [Answer(moved=[[0.1]], reward=reward) for reward in rewards]


def pairs_of(units: Units) -> list[tuple[int, int]]:
    batch = packed(units)[0]
    members = Members.of(batch.with_(unit_S=batch.group_S))
    pairs = Pairs.of(members, merit_of_members(batch, members))
    return sorted(zip(pairs.better_P.tolist(), pairs.worse_P.tolist(), strict=True))


def test_every_pair_of_different_merit_is_compared_inside_its_unit_only() -> None:
    assert pairs_of([answers(0.0, 1.0, 0.5), answers(2.0), answers(1.0, 1.0, 3.0)]) == [
        *[(1, 0), (1, 2), (2, 0)],  # all of a ranking
        *[(6, 4), (6, 5)],  # the two that tie are not compared
    ]


def test_rewards_that_differ_by_rounding_tie() -> None:
    assert pairs_of([answers(0.1 + 0.2, 0.3)]) == []
    assert pairs_of([answers(1000.001, 1000.0)]) == [(0, 1)]


def test_win_probabilities_decide_where_there_are_any() -> None:
    lucky, judged = Answer(moved=[[0.1]], reward=5.0, wins=0.2), Answer(moved=[[0.1]], reward=0.0, wins=0.8)
    assert pairs_of([[lucky, judged]]) == [(1, 0)]
    assert [merit(each) for each in groups_of([[lucky, judged]])[0].trajectories] == [0.2, 0.8]


def test_measures_are_of_whole_answers() -> None:
    batch, logprob_T, _ = packed([[*PAIR, Answer(moved=[[0.4], [0.1]], reward=0.5)]])
    kl_T = torch.where(batch.sampled_T, 0.25, torch.nan)
    scores = Scores(logprob_T=logprob_T, reverse_kl_T=kl_T)
    found = pair_measures(batch.with_(unit_S=batch.group_S), scores, against="reference")
    # Pairs by reward 1, 0.5, 0: log-ratios 0.8, 0.5, −0.2; two, two and one token.
    expected = {
        "pairs/accuracy": 1.0,
        "pairs/margin": (0.3 + 1.0 + 0.7) / 3,
        "pairs/chosen": (0.8 + 0.8 + 0.5) / 3,
        "pairs/rejected": (0.5 - 0.2 - 0.2) / 3,
        "pairs/kl_chosen": 0.5,
        "pairs/kl_rejected": (0.5 + 0.25 + 0.25) / 3,
    }
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected)


def test_measures_of_a_loss_are_means_over_units_however_they_are_cut() -> None:
    wrong = [Answer(moved=[[-0.5]], reward=1.0), Answer(moved=[[0.5]])]
    measures = loss_of_units(preset("dpo"), [PAIR, wrong])[0].measures
    assert float(measures["pairs/accuracy"]) == 0.5
    assert float(measures["pairs/margin"]) == pytest.approx((1.0 - 1.0) / 2)


def test_ties_are_left_out() -> None:
    equal, one, different = groups_of([answers(1.0, 1.0), answers(1.0), answers(1.0, 0.0)])
    assert [len(ties(group).trajectories) for group in (equal, one, different)] == [0, 0, 2]


def test_extremes_keep_the_best_and_the_worst() -> None:
    ranking, equal = groups_of([answers(0.5, 0.0, 1.0), answers(1.0, 1.0)])
    assert [each.reward for each in extremes(ranking).trajectories] == [1.0, 0.0]
    assert extremes(equal).trajectories == []


def test_extremes_look_up_who_beats_whom() -> None:
    group = judged([[0.5, 0.9, 0.6], [0.1, 0.5, 0.3], [0.4, 0.7, 0.5]])
    kept = extremes(group, wins="pair").trajectories
    assert [each.id for each in kept] == ["u0/0", "u0/1"]
    assert [merit(each) for each in kept] == [0.9, 0.1]
    assert [merit(each) for each in extremes(group).trajectories] == pytest.approx([2.0 / 3, 0.3])
    with pytest.raises(
        ValueError, match=r"wins=pair needs the judge's probability that 'u0/1' beats 'u0/0'; set judge"
    ):
        extremes(groups_of([answers(0.0, 1.0)])[0], wins="pair")


def test_the_best_are_kept_in_order_of_merit() -> None:
    group = groups_of([answers(0.5, 1.0, 1.0, 0.0)])[0]
    assert [each.id for each in best(group).trajectories] == ["u0/1"]
    assert [each.id for each in best(group, n=3).trajectories] == ["u0/1", "u0/2", "u0/0"]


def test_a_unit_without_a_pair_moves_nothing() -> None:
    row = Algorithm.of({"surrogate": "dpo", "weights": "unit-mean"})
    loss, gradient_T, _ = loss_of_units(row, [answers(1.0, 1.0), answers(1.0)])
    assert float(loss.policy) == 0
    assert not bool(gradient_T.any())


def judged(matrix: list[list[float]]) -> Group:
    """A group with the judge's matrix."""
    count = len(matrix)
    group = groups_of([[Answer(moved=[[0.1]], wins=math.fsum(row) / count) for row in matrix]])[0]
    names = [each.id for each in group.trajectories]
    found = zip(group.trajectories, matrix, strict=True)
    return replace(group, trajectories=[replace(each, info={"beats": row, "rivals": names}) for each, row in found])
