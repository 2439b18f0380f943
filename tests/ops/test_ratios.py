"""Importance ratios at three levels: numbers, gradients, and the limits in which the levels coincide."""

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import given
from torch import Tensor

from tests.ops import reference, reference_loss
from tests.ops.batches import Case, EpisodeShape, TurnShape, cases, close, known, make_case, ragged, random_case
from turnwise.batch import TokenBatch
from turnwise.ops.ratios import RATIOS, sequence_ratio, token_ratio, turn_ratio

RATIO: Mapping[str, Callable[..., Tensor]] = RATIOS
LEVELS = ["token", "turn", "sequence"]


def one_episode(*lengths: int) -> TokenBatch:
    """One trajectory with turns of these lengths."""
    turns = [TurnShape(sampled=length) for length in lengths]
    return make_case([[EpisodeShape(turns=turns)]]).batch


def drifted(batch: TokenBatch, *drift: float) -> Tensor:
    """Log-probs that moved from the old ones by this much, token by token."""
    logprob_T = known(batch.old_T).clone()
    logprob_T[batch.sampled_T] += torch.tensor(drift, dtype=torch.float64)
    return logprob_T


def ratio(level: str, batch: TokenBatch, logprob_T: Tensor, pooling: str = "mean", **options: str) -> Tensor:
    """A ratio by name; a token has nothing to pool."""
    return RATIO[level](batch, logprob_T, **({} if level == "token" else {"pooling": pooling}), **options)


def test_ratios_by_hand():
    batch = one_episode(2, 1)
    logprob_T = drifted(batch, math.log(2), math.log(8), math.log(3))
    sampled_T = batch.sampled_T
    close(token_ratio(batch, logprob_T)[sampled_T], [2, 8, 3])
    close(turn_ratio(batch, logprob_T)[sampled_T], [4, 4, 3])  # √(2·8)
    close(turn_ratio(batch, logprob_T, pooling="sum")[sampled_T], [16, 16, 3])
    close(sequence_ratio(batch, logprob_T)[sampled_T], [48 ** (1 / 3)] * 3)
    close(sequence_ratio(batch, logprob_T, pooling="sum")[sampled_T], [48] * 3)


@pytest.mark.parametrize(("tokens", "product"), [(20, 1.22), (40, 1.49), (80, 2.23)])
def test_small_drift_blows_up_the_product_and_not_the_geometric_mean(tokens: int, product: float):
    batch = one_episode(tokens)
    logprob_T = drifted(batch, *[0.01] * tokens)
    assert float(turn_ratio(batch, logprob_T, pooling="sum")[-1]) == pytest.approx(product, abs=0.005)
    assert float(turn_ratio(batch, logprob_T)[-1]) == pytest.approx(1.01, abs=1e-4)


@pytest.mark.parametrize("pooling", ["mean", "sum"])
@pytest.mark.parametrize("against", ["old", "mu"])
@pytest.mark.parametrize("level", LEVELS)
@ragged
@given(cases)
def test_ratios_agree_with_loops(level: str, against: str, pooling: str, case: Case):
    then_T = known(case.batch.old_T if against == "old" else case.batch.mu_T)
    made = reference.layout(case.groups)
    expected = reference_loss.ratios(made, case.logprob_T.tolist(), then_T.tolist(), level=level, pooling=pooling)
    close(ratio(level, case.batch, case.logprob_T, pooling, against=against), expected)


@pytest.mark.parametrize("pooling", ["mean", "sum"])
@pytest.mark.parametrize("level", LEVELS)
def test_ratio_gradients_by_finite_differences(level: str, pooling: str):
    case = random_case(11, groups=1)
    logprob_T = torch.nan_to_num(case.logprob_T).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ratio(level, case.batch, x, pooling), (logprob_T,))


@pytest.mark.parametrize("level", ["turn", "sequence"])
def test_straight_through_keeps_the_value_and_gives_each_token_its_own_gradient(level: str):
    case = random_case(4)
    logprob_T = case.logprob_T.clone().requires_grad_()
    through_T = ratio(level, case.batch, logprob_T, gradient="straight-through")
    pooled_T = ratio(level, case.batch, case.logprob_T)
    close(through_T, pooled_T)
    weight_T = torch.where(case.batch.sampled_T, torch.arange(case.batch.tokens, dtype=torch.float64), 0)
    (gradient_T,) = torch.autograd.grad((weight_T * through_T).sum(), logprob_T)
    # ∂(sg[s] π_t / sg[π_t]) / ∂log π_t = s, and nothing crosses between tokens of unequal weight
    close(gradient_T, weight_T * pooled_T)


@pytest.mark.parametrize("level", LEVELS)
def test_ratio_is_one_where_nothing_moved(level: str):
    batch = random_case(2).batch
    close(ratio(level, batch, known(batch.old_T)), [1.0] * batch.tokens)


def test_one_token_turns_make_the_turn_ratio_a_token_ratio():
    batch = one_episode(1, 1, 1)
    logprob_T = drifted(batch, 0.3, -0.2, 0.7)
    close(turn_ratio(batch, logprob_T), token_ratio(batch, logprob_T))
    close(turn_ratio(batch, logprob_T, pooling="sum"), token_ratio(batch, logprob_T))


def test_one_turn_makes_the_turn_ratio_a_sequence_ratio():
    batch = one_episode(4)
    logprob_T = drifted(batch, 0.3, -0.2, 0.7, 0.1)
    close(turn_ratio(batch, logprob_T), sequence_ratio(batch, logprob_T))


@pytest.mark.parametrize(("drift", "expected"), [(50.0, math.exp(20)), (-50.0, math.exp(-20))])
def test_log_ratio_is_clamped_to_twenty(drift: float, expected: float):
    batch = one_episode(1)
    assert float(token_ratio(batch, drifted(batch, drift))[-1]) == pytest.approx(expected)


def test_product_of_many_tokens_is_clamped_too():
    batch = one_episode(30)
    product_T = turn_ratio(batch, drifted(batch, *[5.0] * 30), pooling="sum")
    assert float(product_T[-1]) == pytest.approx(math.exp(20))


@pytest.mark.parametrize(("against", "fix"), [("old", "score the batch"), ("mu", "sampler must return log-probs")])
def test_missing_denominator_says_who_makes_it(against: str, fix: str):
    batch = one_episode(2).with_(old_T=None, mu_T=None)
    for level in LEVELS:
        with pytest.raises(ValueError, match=f"against '{against}', which is not assigned; .*{fix}"):
            ratio(level, batch, torch.zeros(batch.tokens, dtype=torch.float64), against=against)
