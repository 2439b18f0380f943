"""P3O, GRAO and SuperHF: hand numbers, and the methods that they coincide with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops.batches import close
from tests.ops.compared import Answer, Units, groups_of, loss_of_units
from turnwise.algorithm import Algorithm, apply_filters, preset

NO_KL = {"reward": []}
STILL = [[Answer(moved=[[0.0, 0.0]], reward=0.7), Answer(moved=[[0.0]], reward=0.2)]]
"""A pair on-policy: every ratio is 1."""


def answers(*rewards: float, lengths: Sequence[int] = (2, 1, 3)) -> list[Answer]:
    return [Answer(moved=[[0.0] * length], reward=reward) for reward, length in zip(rewards, lengths, strict=False)]


def gradient(row: Algorithm, units: Units) -> Tensor:
    return loss_of_units(row, units)[1]


def p3o(clip: str, **changes: Any) -> Algorithm:
    return preset("p3o-v1").override({"surrogate": {"clip": clip}, **NO_KL, **changes})


def test_p3o_with_separate_clips_by_hand() -> None:
    # log-ratios 0.1 and −0.4: ρ = 1.105 inside its bounds, and 0.670 below 0.8 where the gain of the worse pushes down.
    pair = [Answer(moved=[[0.06, 0.04]], reward=0.7), Answer(moved=[[-0.4]], reward=0.2)]
    first, second = math.exp(0.1), math.exp(-0.4)
    expected = 0.5 * (0.5 * second * first + -0.5 * first * 0.8)
    loss, gradient_T, _ = loss_of_units(p3o("separate"), [pair])
    assert float(loss.policy) == pytest.approx(-expected)
    pushed = 0.5 * 0.5 * first * second
    close(gradient_T, [-pushed, -pushed, 0.0])  # the worse answer is below its bound: nothing pushes it further


def test_p3o_with_a_joint_clip_by_hand() -> None:
    near = [Answer(moved=[[0.1]], reward=0.7), Answer(moved=[[0.02]], reward=0.2)]
    loss, gradient_T, _ = loss_of_units(p3o("joint"), [near])
    weight = 0.5 * math.exp(0.12)
    assert float(loss.policy) == pytest.approx(-0.5 * weight * 0.08)
    close(gradient_T, [-weight / 2, weight / 2])
    far = [Answer(moved=[[0.3]], reward=0.7), Answer(moved=[[-0.1]], reward=0.2)]
    loss, gradient_T, _ = loss_of_units(p3o("joint"), [far])
    assert float(loss.policy) == pytest.approx(-0.5 * 0.5 * math.exp(0.2) * 0.2)
    close(gradient_T, [0.0, 0.0])
    assert loss.bias is not None  # what the clip removed is known to scales and diagnostics
    assert float(loss.bias.detach()) == pytest.approx(0.5 * 0.5 * math.exp(0.2) * (0.4 - 0.2))


@pytest.mark.parametrize("clip", ["separate", "joint"])
def test_p3o_does_not_see_a_shift_of_the_rewards_of_a_prompt(clip: str) -> None:
    pair = [Answer(moved=[[0.06, 0.04]], reward=0.7), Answer(moved=[[-0.1]], reward=0.2)]
    shifted = [replace(answer, reward=answer.reward + 17.0) for answer in pair]
    close(gradient(p3o(clip), [pair, STILL[0]]), gradient(p3o(clip), [shifted, STILL[0]]))


@pytest.mark.parametrize("rewards", [(0.7, 0.2), (0.7, 0.2, 0.7)])
def test_p3o_on_policy_is_rloo_with_either_clip(rewards: tuple[float, ...]) -> None:
    units = [answers(*rewards), answers(*reversed(rewards))]
    rloo = gradient(preset("rloo").override(NO_KL), units)
    assert bool(rloo.any())
    close(gradient(p3o("separate"), units), rloo)
    close(gradient(p3o("joint"), units), rloo)


def grao_row(**surrogate: float) -> Algorithm:
    return preset("grao").override({"surrogate": surrogate})


def test_grao_s_coefficients_where_every_own_answer_is_wrong() -> None:
    own = [Answer(moved=[[0.0]]) for _ in range(8)]
    given = Answer(moved=[[0.0, 0.0]], reward=1.0, known=False)
    coefficients = -gradient(preset("grao").override({"normalizer": {"eps": 0.0}}), [[*own, given]])
    root = math.sqrt(8)  # A_y = 2.83, and A_i = −1/√8 for each of the eight
    close(coefficients[:8], [1.6 * (-1 / root) / 8] * 8)
    assert float(coefficients[0]) == pytest.approx(-0.0707, abs=1e-4)
    y = root * (0.5 + 0.6 / 8)
    assert y == pytest.approx(1.63, abs=0.005)
    close(coefficients[8:], [y / 2, y / 2])


def test_grao_stands_still_where_every_answer_is_right() -> None:
    given = Answer(moved=[[0.0, 0.0]], reward=1.0, known=False)
    assert not bool(gradient(preset("grao"), [[*answers(1.0, 1.0, 1.0), given]]).any())


def test_grao_without_its_terms_and_its_reference_is_grpo_on_policy() -> None:
    units = [answers(1.0, 0.0, 0.3), answers(0.0, 0.0, 1.0)]
    grpo = preset("grpo").override({"regularizers": [], "normalizer": {"population": True}})
    close(gradient(grao_row(beta=0.0, lam=0.0), units), gradient(grpo, units))


def test_superhf_without_its_kl_is_the_policy_gradient_of_the_best_sample() -> None:
    row = preset("superhf").override({"regularizers": []})
    kept = apply_filters(row, groups_of([answers(0.3, 1.0, 0.0), answers(1.0, 0.5, 0.0)]))
    assert [[each.id for each in group.trajectories] for group in kept] == [["u0/1"], ["u1/0"]]
    chosen = [[Answer(moved=[[0.0]], reward=1.0)], [Answer(moved=[[0.0, 0.0]], reward=1.0)]]
    weighted = preset("reinforce").override({"weights": "token-mean"})  # the return, here 1, is the advantage
    close(gradient(row, chosen), gradient(weighted, chosen))


def test_superhf_s_kl_does_not_grow_with_the_minibatch() -> None:
    far = [Answer(moved=[[0.0, 0.0]], kl=[[0.2, 0.4]])]
    one, four = (loss_of_units(preset("superhf"), [far] * count)[0].regularizers["kl"] for count in (1, 4))
    assert float(one) == pytest.approx(0.35 * 0.3)
    torch.testing.assert_close(four, one)
