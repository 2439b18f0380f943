"""Surrogate objectives: values by hand and by loops, gradients by finite differences."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

from tests.ops import reference_loss
from tests.ops.batches import Case, cases, close, known, ragged, terms_of
from turnwise.ops.ratios import token_ratio
from turnwise.ops.surrogates import SURROGATES, cispo, decoupled_mask, negative_log_likelihood, ppo_clip
from turnwise.ops.surrogates import reinforce as plain
from turnwise.ops.terms import Ratios

LOGPROB = torch.tensor([-1.0, -2.0, -0.5, -0.7, -3.0, -0.2], dtype=torch.float64)
RATIO = torch.tensor([1.5, 1.5, 0.5, 0.5, 4.0, 1.1], dtype=torch.float64)
ADVANTAGE = torch.tensor([2.0, -2.0, 2.0, -2.0, -1.0, 1.0], dtype=torch.float64)


def both(ratio: Tensor, clip: Tensor | None = None) -> Ratios:
    """The same ratio for the weight and for the decision, unless one is given."""
    return Ratios(weight_T=ratio, against_old=lambda: ratio if clip is None else clip)


def test_ppo_clip_by_hand():
    terms = terms_of(ppo_clip, both(RATIO), LOGPROB, ADVANTAGE, low=0.2, high=0.3)
    # 1.3·2 (cut); 1.5·−2 (kept: it must come back); 0.5·2 (kept); 0.8·−2 (cut); 4·−1 (kept without dual); 1.1·1
    close(terms.objective, [2.6, -3.0, 1.0, -1.6, -4.0, 1.1])
    close(known(terms.unclipped), [3.0, -3.0, 1.0, -1.0, -4.0, 1.1])
    assert known(terms.clipped).tolist() == [True, False, False, True, False, False]


def test_dual_clip_bounds_the_loss_of_negative_advantages():
    terms = terms_of(ppo_clip, both(RATIO), LOGPROB, ADVANTAGE, low=0.2, high=0.3, dual=3.0)
    close(terms.objective, [2.6, -3.0, 1.0, -1.6, -3.0, 1.1])  # 4·−1 is lifted to 3·−1, nothing else changes
    assert known(terms.clipped).tolist() == [True, False, False, True, True, False]


def test_decoupled_mask_by_hand():
    decision = torch.tensor([1.0, 1.4, 0.5, 0.5, 1.0, 1.4], dtype=torch.float64)
    ratio = torch.tensor([7.0, 1.5, 0.5, 0.5, 4.0, 1.1], dtype=torch.float64)
    terms = terms_of(decoupled_mask, both(ratio, decision), LOGPROB, ADVANTAGE, low=0.2, high=0.27, cap=5.0)
    # 5·2·−1 (weight cut at 5); 1.5·−2·−2; 0.5·2·−0.5; masked; 4·−1·−3; masked by the decision, not by the weight 1.1
    close(terms.objective, [-10.0, 6.0, -0.5, 0.0, 12.0, 0.0])
    assert known(terms.clipped).tolist() == [False, False, False, True, False, True]


def test_cispo_by_hand():
    terms = terms_of(cispo, both(RATIO), LOGPROB, ADVANTAGE, low=0.4, high=0.28)
    # weights 1.28, 1.28, 0.6, 0.6, 1.28, 1.1
    close(terms.objective, [-2.56, 5.12, -0.6, 0.84, 3.84, -0.22])
    assert known(terms.clipped).tolist() == [True, True, True, True, True, False]
    assert known(terms_of(cispo, both(RATIO), LOGPROB, ADVANTAGE).clipped).tolist() == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]


def test_plain_surrogates_by_hand():
    close(terms_of(plain, both(RATIO), LOGPROB, ADVANTAGE).objective, [-2.0, 4.0, -1.0, 1.4, 3.0, -0.2])
    close(terms_of(negative_log_likelihood, both(RATIO), LOGPROB, ADVANTAGE).objective, LOGPROB)
    assert terms_of(plain, both(RATIO), LOGPROB, ADVANTAGE).clipped is None


@ragged
@given(cases)
def test_surrogates_agree_with_loops(case: Case):
    sampled_T = case.batch.sampled_T
    logprob_T, advantage_T = case.logprob_T[sampled_T], known(case.batch.advantage_T)[sampled_T]
    weight_T = token_ratio(case.batch, case.logprob_T, against="mu")[sampled_T]
    clip_T = token_ratio(case.batch, case.logprob_T)[sampled_T]
    rows = list(zip(weight_T.tolist(), clip_T.tolist(), advantage_T.tolist(), logprob_T.tolist(), strict=True))

    def terms(surrogate: Any, **options: float) -> Tensor:
        return terms_of(surrogate, both(weight_T, clip_T), logprob_T, advantage_T, **options).objective

    close(terms(ppo_clip, low=0.2, high=0.3), [reference_loss.ppo(w, a, 0.2, 0.3, None) for w, _, a, _ in rows])
    close(
        terms(ppo_clip, low=0.1, high=0.2, dual=1.3), [reference_loss.ppo(w, a, 0.1, 0.2, 1.3) for w, _, a, _ in rows]
    )
    close(
        terms(decoupled_mask, low=0.1, high=0.2),
        [reference_loss.decoupled(w, d, a, lp, 0.1, 0.2) for w, d, a, lp in rows],
    )
    close(terms(cispo, low=0.1, high=0.2), [reference_loss.cispo(w, a, lp, 0.1, 0.2) for w, _, a, lp in rows])
    close(terms(plain), [a * lp for _, _, a, lp in rows])
    close(terms(negative_log_likelihood), [lp for *_, lp in rows])


@pytest.mark.parametrize("dual", [None, 3.0])
def test_ppo_gradient_by_finite_differences(dual: float | None):
    def objective(logprob: Tensor) -> Tensor:
        ratio = (logprob - LOGPROB).exp() * RATIO
        return terms_of(ppo_clip, both(ratio), logprob, ADVANTAGE, dual=dual).objective

    assert torch.autograd.gradcheck(objective, (LOGPROB.clone().requires_grad_(),))


@pytest.mark.parametrize(
    ("kind", "coefficients"),
    [
        ("ppo-clip", [0.0, -3.0, 1.0, 0.0, -4.0, 1.1]),  # w A where it is not clipped
        ("mask", [0.0, -3.0, 1.0, 0.0, -4.0, 1.1]),  # the same, through log π
        ("cispo", [2.56, -2.56, 1.0, -1.0, -1.28, 1.1]),  # clipped weight times A, no token lost
        ("reinforce", [2.0, -2.0, 2.0, -2.0, -1.0, 1.0]),
        ("nll", [1.0] * 6),
    ],
)
def test_gradient_of_each_surrogate_by_hand(kind: str, coefficients: list[float]):
    logprob = LOGPROB.clone().requires_grad_()
    ratio = (logprob - LOGPROB).exp() * RATIO
    (gradient,) = torch.autograd.grad(
        terms_of(SURROGATES[kind], both(ratio), logprob, ADVANTAGE).objective.sum(), logprob
    )
    close(gradient, coefficients)


@pytest.mark.parametrize("kind", ["ppo-clip", "mask", "cispo", "reinforce"])
def test_at_ratio_one_every_surrogate_has_the_gradient_of_reinforce(kind: str):
    logprob = LOGPROB.clone().requires_grad_()
    ratio = (logprob - LOGPROB).exp()
    terms = terms_of(SURROGATES[kind], both(ratio), logprob, ADVANTAGE)
    (gradient,) = torch.autograd.grad(terms.objective.sum(), logprob)
    close(gradient, ADVANTAGE)
    assert terms.clipped is None or not terms.clipped.any()


@pytest.mark.parametrize("kind", ["ppo-clip", "mask", "cispo"])
def test_unmarked_tokens_are_what_they_would_be_without_the_clip(kind: str):
    terms = terms_of(SURROGATES[kind], both(RATIO), LOGPROB, ADVANTAGE)
    close(terms.objective, known(terms.unclipped), where=~known(terms.clipped))
    assert math.isfinite(float(terms.objective.sum()))
