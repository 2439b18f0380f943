"""Where methods coincide, their rows give the same loss and the same gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops.batches import Case, EpisodeShape, TurnShape, make_case, random_case
from turnwise.algorithm import Algorithm, Loss, compute_credit, compute_loss, make_scale, preset
from turnwise.batch import Scores


def run(row: Algorithm, case: Case, *, on_policy: bool = False) -> tuple[Loss, Tensor]:
    credited = compute_credit(row, case.batch)
    assert credited.old_T is not None
    leaf_T = torch.nan_to_num(credited.old_T if on_policy else case.logprob_T).requires_grad_()
    loss = compute_loss(row, credited, Scores(logprob_T=leaf_T, value_T=credited.value_T, entropy_T=leaf_T.detach()))
    (gradient_T,) = torch.autograd.grad(loss.total, leaf_T)
    return loss, gradient_T


def same(first: Algorithm, second: Algorithm, case: Case, *, factor: float = 1.0, on_policy: bool = False) -> None:
    _, expected_T = run(first, case, on_policy=on_policy)
    _, actual_T = run(second, case, on_policy=on_policy)
    assert float(expected_T.abs().sum()) > 0, "the comparison would be empty"
    torch.testing.assert_close(actual_T, factor * expected_T, rtol=1e-9, atol=1e-12)


def change(name: str, changes: Mapping[str, Any]) -> Algorithm:
    return preset(name).override(changes)


def shaped(*lengths: list[int], seed: int = 0) -> Case:
    """One group; each list is an episode with turns of these lengths and a reward at its end."""
    episodes = [
        EpisodeShape(
            turns=[
                TurnShape(sampled=n, reward=float(place == len(turns) - 1) * (0.5 + number % 2))
                for place, n in enumerate(turns)
            ]
        )
        for number, turns in enumerate(lengths)
    ]
    return make_case([episodes], seed=seed)


ONE_TOKEN_TURNS = shaped([1, 1, 1], [1, 1], [1], [1, 1, 1, 1])
ONE_TURN = shaped([3], [5], [2], [7])
TWO_TRIES = shaped([2, 3], [4])
RAGGED = shaped([2, 5], [1, 3, 2], [4], [6, 1])


def test_one_token_turns_make_turn_ppo_token_ppo() -> None:
    same(preset("ppo"), preset("turn-ppo"), ONE_TOKEN_TURNS)


def test_one_token_turns_make_st_ppo_s_ppo_with_the_same_scale() -> None:
    scales = []
    for name in ("s-ppo", "st-ppo"):
        row = preset(name).override({"scale": {"threshold": 1e-3}})
        loss, _ = run(row, ONE_TOKEN_TURNS)
        scale = make_scale(row)
        assert scale is not None
        assert loss.bias is not None
        scale.observe(loss, Scores(logprob_T=ONE_TOKEN_TURNS.logprob_T))
        scales.append(scale.finish())
    assert scales[0] == scales[1]
    assert 0 < scales[0].value < 1


def test_one_turn_makes_the_turn_ratio_the_sequence_ratio() -> None:
    same(change("ppo", {"ratio": "sequence"}), preset("turn-ppo"), ONE_TURN)


def test_turn_ppo_differs_from_token_ppo_on_longer_turns() -> None:
    _, token_T = run(preset("ppo"), RAGGED)
    _, turn_T = run(preset("turn-ppo"), RAGGED)
    assert float((token_T - turn_T).abs().max()) > 1e-3


def test_on_policy_turn_ppo_gives_every_token_the_mean_advantage_of_its_turn() -> None:
    row = change("turn-ppo", {"weights": "token-mean"})
    credited = compute_credit(row, RAGGED.batch)
    _, gradient_T = run(row, RAGGED, on_policy=True)
    assert credited.advantage_T is not None
    tokens = int(credited.sampled_T.sum())
    for turn in range(credited.turns):
        mine_T = credited.turn_T == turn
        mean = float(credited.advantage_T[mine_T].mean())
        torch.testing.assert_close(-gradient_T[mine_T] * tokens, torch.full_like(gradient_T[mine_T], mean))


def test_flowing_and_straight_through_gradients_agree_when_the_advantage_is_constant_in_a_turn() -> None:
    flow = change("so-grpo", {"regularizers": []})
    same(flow, flow.override({"ratio": {"gradient": "straight-through"}}), RAGGED)


def test_gspo_on_sequences_of_one_token_is_ppo_clip() -> None:
    case = shaped([1], [1], [1], [1])
    gspo = change("gspo", {"surrogate": {"low": 0.2, "high": 0.2}})
    same(change("grpo", {"regularizers": []}), gspo, case)


def test_cispo_on_policy_is_reinforce() -> None:
    plain = change("cispo", {"surrogate": {"kind": "reinforce"}})
    same(plain, preset("cispo"), RAGGED, on_policy=True)


def test_minirl_on_policy_with_an_exact_sampler_is_dr_grpo_up_to_its_constant() -> None:
    exact = Case(groups=RAGGED.groups, batch=RAGGED.batch.with_(mu_T=RAGGED.batch.old_T), logprob_T=RAGGED.logprob_T)
    dr_grpo = change("dr-grpo", {"weights": {"kind": "constant", "length": 100.0}})
    same(dr_grpo, preset("minirl"), exact, factor=100.0, on_policy=True)


def test_poad_on_single_token_turns_is_gae_with_the_same_discount() -> None:
    same(preset("ntpo"), preset("poad"), ONE_TOKEN_TURNS)


def test_ntpo_without_discount_is_poad_without_discount() -> None:
    first = change("ntpo", {"advantage": {"gamma": 1.0}})
    same(first, change("poad", {"advantage": {"gamma_turn": 1.0}}), RAGGED)


def test_poad_and_ntpo_differ_on_longer_turns() -> None:
    _, flat_T = run(preset("ntpo"), RAGGED)
    _, split_T = run(preset("poad"), RAGGED)
    assert float((flat_T - split_T).abs().max()) > 1e-4


def test_rloo_with_two_tries_is_the_pairwise_policy_gradient() -> None:
    # P3O on-policy: (r1 − r2) ∇ log(π1/π2) / 2 for the pair; RLOO averages over its two samples: the same.
    row = change("rloo", {"reward": []})
    _, gradient_T = run(row, TWO_TRIES)
    batch = TWO_TRIES.batch
    first, second = (float(batch.reward_T[batch.sequence_T == s].sum()) for s in (0, 1))
    expected_T = torch.where(batch.sequence_T == 0, -(first - second) / 2, (first - second) / 2)
    torch.testing.assert_close(gradient_T, torch.where(batch.sampled_T, expected_T, 0).double())


def test_gigpo_without_repeated_states_is_grpo() -> None:
    same(change("grpo", {"regularizers": []}), preset("gigpo"), RAGGED)


def test_dual_discounting_with_equal_pairs_is_gae() -> None:
    options = {"gamma_token": 0.97, "gamma_turn": 0.97, "lam_token": 0.9, "lam_turn": 0.9}
    first = change("dual-discount", {"advantage": {"kind": "gae", "gamma": 0.97, "lam": 0.9}})
    same(first, change("dual-discount", {"advantage": options}), random_case(2))


def test_turn_gae_on_one_token_turns_is_token_gae() -> None:
    token = change("ppo", {"advantage": {"kind": "gae", "gamma": 0.9, "lam": 0.8}})
    same(token, change("ppo", {"advantage": {"kind": "turn-gae", "gamma": 0.9, "lam": 0.8}}), ONE_TOKEN_TURNS)


@pytest.mark.parametrize("name", ["s-ppo", "st-ppo", "so-grpo"])
def test_on_policy_nothing_is_clipped_and_the_scale_is_one(name: str) -> None:
    row = preset(name)
    loss, _ = run(row, RAGGED, on_policy=True)
    scale = make_scale(row)
    assert scale is not None
    scale.observe(loss, Scores(logprob_T=RAGGED.logprob_T))
    assert loss.bias is None
    assert scale.finish().value == 1.0
