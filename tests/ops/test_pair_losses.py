"""Losses on comparisons: hand numbers, gradients by finite differences, and identities."""

from __future__ import annotations

import math
from typing import Any

import pytest

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
