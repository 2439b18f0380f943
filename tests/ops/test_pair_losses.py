"""Losses on comparisons: hand numbers, gradients by finite differences, and identities."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.ops.batches import close
from tests.ops.compared import PAIR, Answer, Units, loss_of_units
from turnwise.algorithm import Algorithm, preset

RANKING = [
    Answer(moved=[[0.5, 0.3]], reward=1.0, kl=[[0.1, 0.2]]),
    Answer(moved=[[-0.2]], reward=0.0, kl=[[0.4]]),
    Answer(moved=[[0.1, 0.2, -0.4]], reward=0.5, kl=[[0.0, 0.3, 0.1]]),
]


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def row_of(name: str, **surrogate: Any) -> Algorithm:
    return preset(name).override({"surrogate": surrogate})


def loss_of(row: Algorithm, units: Units) -> float:
    return float(loss_of_units(row, units)[0].total.detach())


def test_dpo_by_hand() -> None:
    assert loss_of(preset("dpo"), [PAIR]) == pytest.approx(-log_sigmoid(0.1 * 1.0))
    assert loss_of(row_of("dpo", beta=0.5, length="mean"), [PAIR]) == pytest.approx(-log_sigmoid(0.5 * (0.4 + 0.2)))


def test_dpo_with_doubt_by_hand() -> None:
    smoothed = loss_of(row_of("dpo", label_smoothing=0.2), [PAIR])
    assert smoothed == pytest.approx(-0.8 * log_sigmoid(0.1) - 0.2 * log_sigmoid(-0.1))
    judged = [Answer(moved=[[0.8]], wins=0.7), Answer(moved=[[-0.2]], wins=0.3)]
    soft = loss_of(row_of("dpo", labels="wins"), [judged])
    assert soft == pytest.approx(-0.7 * log_sigmoid(0.1) - 0.3 * log_sigmoid(-0.1))
    with pytest.raises(ValueError, match="labels=wins already says how sure each preference is"):
        loss_of(row_of("dpo", labels="wins", label_smoothing=0.1), [judged])


def test_the_pairs_of_a_ranking_share_the_weight_of_their_unit() -> None:
    terms = [log_sigmoid(0.1 * margin) for margin in (1.0, 0.9, 0.1)]  # Δ: 0.8, −0.1, −0.2
    assert loss_of(preset("dpo"), [RANKING]) == pytest.approx(-sum(terms) / 3)
    assert loss_of(preset("dpo"), [RANKING, PAIR]) == pytest.approx(-(sum(terms) / 3 + log_sigmoid(0.1)) / 2)


def test_turns_are_compared_with_each_other_as_far_as_both_have_them() -> None:
    long = Answer(moved=[[0.5], [0.2, 0.1], [9.0]], reward=1.0)
    short = Answer(moved=[[-0.1, -0.1], [0.4]], reward=0.0)
    by_turn = loss_of(row_of("dpo", level="turn", beta=1.0), [[long, short]])
    assert by_turn == pytest.approx(-(log_sigmoid(0.7) + log_sigmoid(-0.1)) / 2)
    assert loss_of(row_of("dpo", level="turn"), [PAIR]) == loss_of(preset("dpo"), [PAIR])


JUDGED = [Answer(moved=[[0.5, 0.3]], wins=0.7), Answer(moved=[[-0.2]], wins=0.4)]
FAR = [Answer(moved=[[0.5, 0.3]], reward=1.0, kl=[[0.1, 0.2]]), Answer(moved=[[-0.2]], kl=[[0.4]])]
"""Δ = 0.8 and −0.2, D = 0.3 and 0.4."""


def test_ipo_by_hand() -> None:
    assert loss_of(preset("ipo"), [PAIR]) == pytest.approx((0.4 + 0.2 - 5.0) ** 2)
    assert loss_of(row_of("ipo", length="sum", beta=0.5), [PAIR]) == pytest.approx((1.0 - 1.0) ** 2)


def test_kto_by_hand() -> None:
    row = row_of("kto", beta=0.5, anchor=0.1, desirable=2.0, undesirable=3.0)
    good, bad = 1 - math.exp(log_sigmoid(0.5 * (0.8 - 0.1))), 1 - math.exp(log_sigmoid(0.5 * (0.1 + 0.2)))
    assert loss_of(row, [PAIR]) == pytest.approx((2 * good + 3 * bad) / 2)
    alone = [[PAIR[0]], [PAIR[1]], [PAIR[1]]]  # nobody needs a partner, and every answer counts the same
    assert loss_of(row, alone) == pytest.approx((2 * good + 6 * bad) / 3)


def test_tdpo_by_hand() -> None:
    assert loss_of(preset("tdpo1"), [FAR]) == pytest.approx(-log_sigmoid(0.1 * (1.0 - (0.4 - 0.3))))
    assert loss_of(preset("tdpo2"), [FAR]) == pytest.approx(-log_sigmoid(0.1 * (1.0 - 0.5 * (0.4 - 0.3))))
    assert loss_of(row_of("tdpo2", alpha=0.0), [FAR]) == pytest.approx(loss_of(preset("dpo"), [FAR]))


def test_tdpo2_detaches_the_better_answer_s_kl_and_nothing_else() -> None:
    """∂L/∂D = ∓ σ(−margin) β α: on the worse answer with either, on the better one without the detach only."""
    stopped, free = (loss_of_units(row_of("tdpo2", detach=detach), [FAR]) for detach in (True, False))
    assert float(stopped[0].total.detach()) == float(free[0].total.detach())
    close(stopped[1], free[1])  # the same for the log-probs
    pushed = math.exp(log_sigmoid(-0.1 * (1.0 - 0.05))) * 0.1 * 0.5
    assert stopped[2] is not None
    assert free[2] is not None
    close(stopped[2], [0.0, 0.0, pushed])
    close(free[2], [-pushed, -pushed, pushed])


def test_sppo_by_hand() -> None:
    expected = ((0.8 - 0.2 / 0.5) ** 2 + (-0.2 + 0.1 / 0.5) ** 2) / 2
    assert loss_of(row_of("sppo", beta=0.5), [JUDGED]) == pytest.approx(expected)


def test_sppo_stands_still_only_where_both_targets_are_met() -> None:
    def gradient(first: float, second: float) -> list[float]:
        pair = [Answer(moved=[[first]], wins=0.7), Answer(moved=[[second]], wins=0.4)]
        return loss_of_units(row_of("sppo", beta=0.5), [pair])[1].tolist()

    assert gradient(0.4, -0.2) == pytest.approx([0.0, 0.0], abs=1e-12)
    assert gradient(0.5, -0.1) == pytest.approx([0.1, 0.1])  # the same difference, which is all that DPO sees
    assert gradient(0.4, 0.0) == pytest.approx([0.0, 0.2])


@pytest.mark.parametrize("name", ["dpo", "iterative-dpo", "tdpo1", "tdpo2"])
@pytest.mark.parametrize("level", ["sequence", "turn"])
def test_losses_of_the_dpo_family_are_log_2_at_the_reference(name: str, level: str) -> None:
    units = [[replace(answer, moved=[[0.0] * len(turn) for turn in answer.moved]) for answer in RANKING]]
    still = [[replace(answer, kl=answer.moved) for answer in unit] for unit in units]
    assert loss_of(row_of(name, level=level), still) == pytest.approx(math.log(2))


@pytest.mark.parametrize("name", ["dpo", "ipo", "tdpo1", "tdpo2"])
def test_one_turn_is_a_sequence(name: str) -> None:
    assert loss_of(row_of(name, level="turn"), [FAR]) == loss_of(preset(name), [FAR])
