"""ST-PPO's lemmas: the turn-level policy gradient, and the clipping bias C as what the clip takes away."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from torch import Tensor

from tests.ops import reference, reference_loss
from tests.ops.batches import (
    Case,
    EpisodeShape,
    TurnShape,
    cases,
    close,
    known,
    make_case,
    ragged,
    random_case,
)
from tests.ops.tiny_policy import TinyPolicy, stale
from turnwise.batch import Scores, TokenBatch
from turnwise.ops.clip_bias import bias_coefficients
from turnwise.ops.ratios import RATIOS
from turnwise.ops.surrogates import ppo_clip
from turnwise.ops.terms import Ratios, Terms
from turnwise.ops.weights import Counts, sequence_mean

RATIO: Mapping[str, Callable[..., Tensor]] = RATIOS
LEVELS = ["token", "turn", "sequence"]
SEEDS = range(4)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The library's objective with the paper's 1/|y|, and the same numbers for the reference."""

    terms: Terms
    ratio_T: Tensor
    weight_T: Tensor

    @classmethod
    def of(cls, batch: TokenBatch, logprob_T: Tensor, level: str) -> "Objective":
        ratio_T = RATIO[level](batch, logprob_T)
        ratios = Ratios(weight_T=ratio_T, against_old=lambda: ratio_T)
        terms = ppo_clip(batch, Scores(logprob_T=logprob_T), ratios)
        return cls(terms=terms, ratio_T=ratio_T, weight_T=sequence_mean(batch, Counts.of(batch)))

    @property
    def clipped(self) -> Tensor:
        return (self.weight_T * self.terms.objective).sum()

    @property
    def unclipped(self) -> Tensor:
        return (self.weight_T * known(self.terms.unclipped)).sum()


def coefficients(case: Case, batch: TokenBatch, made: Objective, *, level: str, keep: str) -> Tensor:
    """What the notes' formulas give each token, for the clipped tokens, the others or all of them."""
    ratio, advantage = made.ratio_T.tolist(), known(batch.advantage_T).tolist()
    out = [reference_loss.clipped(w, a, 0.2, 0.2) for w, a in zip(ratio, advantage, strict=True)]
    chosen = {"clipped": out, "unclipped": [not gone for gone in out], "all": [True] * len(out)}[keep]
    layout = reference.layout(case.groups)
    weight = reference_loss.weights(layout, [True] * layout.tokens, kind="sequence-mean")
    found = reference_loss.gradient_coefficients(layout, ratio, advantage, weight, level=level, keep=chosen)
    return torch.tensor(found, dtype=torch.float64)


def test_turn_gradient_and_bias_by_hand():
    # One turn of two tokens, w = 1.5 shared, A = (2, −1), weight ½ each: the first token is clipped (1.5 > 1.2, A > 0).
    batch = make_case([[EpisodeShape(turns=[TurnShape(prompt=0, sampled=2)])]]).batch
    batch = batch.with_(advantage_T=torch.tensor([2.0, -1.0], dtype=torch.float64))
    logprob_T = (known(batch.old_T) + torch.tensor([0.0, 2 * math.log(1.5)], dtype=torch.float64)).requires_grad_()
    made = Objective.of(batch, logprob_T, "turn")
    assert known(made.terms.clipped).tolist() == [True, False]
    (gradient_T,) = torch.autograd.grad(made.clipped, logprob_T, retain_graph=True)
    close(gradient_T, [-0.375, -0.375])  # w · (½ · −1) / 2 for both tokens
    close(bias_coefficients(made.unclipped - made.clipped, logprob_T), [0.75, 0.75])  # w · (½ · 2) / 2


def test_token_bias_by_hand():
    batch = make_case([[EpisodeShape(turns=[TurnShape(prompt=0, sampled=2)])]]).batch
    batch = batch.with_(advantage_T=torch.tensor([2.0, -1.0], dtype=torch.float64))
    logprob_T = (known(batch.old_T) + math.log(1.5)).requires_grad_()
    made = Objective.of(batch, logprob_T, "token")
    close(bias_coefficients(made.unclipped - made.clipped, logprob_T), [1.5, 0.0])  # ½ · 1.5 · 2, the clipped one only


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("keep", ["all", "unclipped"])
def test_lemma_4_1_the_turn_level_policy_gradient(seed: int, keep: str):
    case, policy = random_case(seed), TinyPolicy(seed=seed)
    batch = stale(case, policy, seed=seed)
    logprob_T = policy.logprobs(batch)
    made = Objective.of(batch, logprob_T, "turn")
    coefficient_T = coefficients(case, batch, made, level="turn", keep=keep)
    wanted = policy.gradient((coefficient_T * logprob_T).sum())
    assert bool(known(made.terms.clipped).any())
    close(policy.gradient(made.unclipped if keep == "all" else made.clipped), wanted)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("level", LEVELS)
def test_clipped_gradient_plus_bias_is_the_unclipped_gradient(level: str, seed: int):
    case, policy = random_case(seed), TinyPolicy(seed=seed)
    batch = stale(case, policy, seed=seed)
    logprob_T = policy.logprobs(batch)
    made = Objective.of(batch, logprob_T, level)
    bias_T = coefficients(case, batch, made, level=level, keep="clipped")
    assert float(bias_T.abs().max()) > 0
    bias = policy.gradient((bias_T * logprob_T).sum())
    close(policy.gradient(made.clipped) + bias, policy.gradient(made.unclipped))


@pytest.mark.parametrize("level", LEVELS)
@ragged
@given(cases)
def test_library_bias_agrees_with_the_formulas(level: str, case: Case):
    batch = case.batch.with_(advantage_T=torch.nan_to_num(known(case.batch.advantage_T)))
    logprob_T = torch.nan_to_num(case.logprob_T).requires_grad_()
    made = Objective.of(batch, logprob_T, level)
    wanted_T = coefficients(case, batch, made, level=level, keep="clipped")
    close(bias_coefficients(made.unclipped - made.clipped, logprob_T), wanted_T)


def test_on_policy_the_turn_ratio_averages_the_advantage_of_a_turn():
    batch = make_case([[EpisodeShape(turns=[TurnShape(prompt=0, sampled=3), TurnShape(prompt=0, sampled=1)])]]).batch
    batch = batch.with_(advantage_T=torch.tensor([1.0, 2.0, 6.0, -4.0], dtype=torch.float64))
    logprob_T = known(batch.old_T).clone().requires_grad_()
    (by_turn_T,) = torch.autograd.grad(Objective.of(batch, logprob_T, "turn").clipped, logprob_T)
    (by_token_T,) = torch.autograd.grad(Objective.of(batch, logprob_T, "token").clipped, logprob_T)
    close(4 * by_turn_T, [3.0, 3.0, 3.0, -4.0])
    close(4 * by_token_T, [1.0, 2.0, 6.0, -4.0])


def test_straight_through_agrees_with_the_flowing_gradient_iff_advantages_are_constant_in_the_turn():
    case = random_case(1)
    logprob_T = torch.nan_to_num(case.logprob_T).requires_grad_()

    def gradient(advantage_T: Tensor, form: str) -> Tensor:
        ratio_T = RATIO["turn"](case.batch, logprob_T, gradient=form)
        return torch.autograd.grad((ratio_T * advantage_T).sum(), logprob_T)[0]

    constant_T = torch.where(case.batch.sampled_T, 0.3 * case.batch.turn_T, 0).to(torch.float64)
    close(gradient(constant_T, "flow"), gradient(constant_T, "straight-through"))
    varying_T = torch.nan_to_num(known(case.batch.advantage_T))
    assert float((gradient(varying_T, "flow") - gradient(varying_T, "straight-through")).abs().max()) > 0.1


def test_nothing_is_clipped_before_the_first_update():
    batch = random_case(2).batch
    batch = batch.with_(advantage_T=torch.nan_to_num(known(batch.advantage_T)))
    for level in LEVELS:
        made = Objective.of(batch, torch.nan_to_num(known(batch.old_T)), level)
        assert not known(made.terms.clipped).any()
