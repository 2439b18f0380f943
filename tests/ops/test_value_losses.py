"""Losses of the critic: squared, Huber and histogram, clipped and not."""

import math

import pytest
import torch
from hypothesis import given
from torch import Tensor

from tests.ops import reference_loss
from tests.ops.batches import Case, EpisodeShape, TurnShape, cases, close, known, make_case, ragged
from turnwise.batch import Scores, TokenBatch
from turnwise.ops.values import gaussian_histogram, histogram_mean, hl_gauss, huber, mse


def critic(old: list[float], target: list[float]) -> TokenBatch:
    """A batch of sampled tokens only, with these old values and targets."""
    batch = make_case([[EpisodeShape(turns=[TurnShape(prompt=0, sampled=len(old))])]]).batch
    return batch.with_(
        value_T=torch.tensor(old, dtype=torch.float64), return_T=torch.tensor(target, dtype=torch.float64)
    )


def says(*values: float) -> Scores:
    """A critic that now says this."""
    value_T = torch.tensor(values, dtype=torch.float64)
    return Scores(logprob_T=torch.zeros_like(value_T), value_T=value_T)


def test_squared_error_by_hand():
    batch = critic([0.0, 0.0], [1.0, 1.0])
    close(mse(batch, says(0.5, 2.0)), [0.125, 0.5])
    # Clipped at 0.2 the values count as 0.2: ½·0.8² = 0.32. The larger loss wins.
    close(mse(batch, says(0.5, 2.0), clip=0.2), [0.32, 0.5])


def test_huber_by_hand():
    batch = critic([0.0, 0.0], [1.0, 1.0])
    close(huber(batch, says(0.5, 4.0), delta=1.0), [0.125, 2.5])  # 1·(3 − ½)
    close(huber(batch, says(0.5, 4.0), delta=0.5), [0.125, 1.375])  # 0.5·(3 − ¼)


def test_histogram_by_hand():
    # Two bins on [0, 1], spread 1: σ = ½. For R = ½ both bins get half. For R = 0, edges 0, ½, 1 lie at 0, 1 and 2 σ:
    # masses 0.341345 and 0.135905 of 0.477250.
    target = gaussian_histogram(torch.tensor([0.5, 0.0], dtype=torch.float64), low=0.0, high=1.0, bins=2, spread=1.0)
    close(target[0], [0.5, 0.5])
    assert target[1].tolist() == pytest.approx([0.341345 / 0.477250, 0.135905 / 0.477250], abs=1e-5)
    batch = critic([0.0, 0.0], [0.5, -7.0])  # the second return is clamped to 0
    scores = Scores(logprob_T=torch.zeros(2), value_logits_TB=torch.zeros(2, 2, dtype=torch.float64))
    close(hl_gauss(batch, scores, low=0.0, high=1.0, bins=2, spread=1.0), [math.log(2)] * 2)


def test_histogram_mean_by_hand():
    logits = torch.log(torch.tensor([[0.25, 0.75]], dtype=torch.float64))
    close(histogram_mean(logits, low=-1.0, high=1.0), [0.25])  # centres ∓½: −0.125 + 0.375


@ragged
@given(cases)
def test_value_losses_agree_with_loops(case: Case):
    batch = case.batch.with_(return_T=case.logprob_T)
    scores, sampled_T = case.scores(), batch.sampled_T
    rows = list(
        zip(known(scores.value_T).tolist(), known(batch.value_T).tolist(), case.logprob_T.tolist(), strict=True)
    )
    moved = [reference_loss.clipped_value(value, old, 0.05) for value, old, _ in rows]
    square = [reference_loss.squared(value - target) for value, _, target in rows]
    cut = [max(s, reference_loss.squared(m - row[2])) for s, m, row in zip(square, moved, rows, strict=True)]
    close(mse(batch, scores), square, where=sampled_T)
    close(mse(batch, scores, clip=0.05), cut, where=sampled_T)
    linear = [reference_loss.huber(value - target, 0.6) for value, _, target in rows]
    cut = [max(h, reference_loss.huber(m - row[2], 0.6)) for h, m, row in zip(linear, moved, rows, strict=True)]
    close(huber(batch, scores, delta=0.6), linear, where=sampled_T)
    close(huber(batch, scores, delta=0.6, clip=0.05), cut, where=sampled_T)


def test_histogram_loss_agrees_with_loops():
    noise = torch.Generator().manual_seed(0)
    returns = torch.linspace(-1.5, 1.5, 9, dtype=torch.float64)
    logits = torch.randn(9, 5, generator=noise, dtype=torch.float64)
    batch = critic([0.0] * 9, returns.tolist())
    loss = hl_gauss(batch, Scores(logprob_T=returns, value_logits_TB=logits), low=-1.0, high=1.0, bins=5, spread=0.75)
    expected = [
        reference_loss.cross_entropy(
            reference_loss.gaussian_histogram(target, low=-1.0, high=1.0, bins=5, spread=0.75), row
        )
        for target, row in zip(returns.tolist(), logits.tolist(), strict=True)
    ]
    close(loss, expected)


def test_value_gradients_by_finite_differences():
    batch = critic([0.0, 0.3, -1.0, 2.0], [1.0, 0.1, 0.5, -2.0])
    logprob_T = torch.zeros(4, dtype=torch.float64)

    def scored(value_T: Tensor) -> Scores:
        return Scores(logprob_T=logprob_T, value_T=value_T)

    value_T = torch.tensor([0.5, 0.35, 2.0, 0.4], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: mse(batch, scored(v)), (value_T,))
    assert torch.autograd.gradcheck(lambda v: mse(batch, scored(v), clip=0.2), (value_T,))
    assert torch.autograd.gradcheck(lambda v: huber(batch, scored(v), delta=0.6, clip=0.2), (value_T,))
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: hl_gauss(batch, Scores(logprob_T=logprob_T, value_logits_TB=x), low=-1.0, high=1.0, bins=5), (logits,)
    )


def test_histogram_critic_recovers_the_return_at_its_optimum():
    returns = torch.tensor([0.3, 0.5, 0.62], dtype=torch.float64)
    target = gaussian_histogram(returns, low=0.0, high=1.0, bins=51, spread=0.75)
    torch.testing.assert_close(histogram_mean(target.log(), low=0.0, high=1.0), returns, rtol=0, atol=1e-6)


def test_a_critic_that_reads_from_another_support_is_refused():
    logits = torch.tensor([[0.0, 1.0, 2.0]], dtype=torch.float64)
    value_T = histogram_mean(logits, low=0.0, high=1.0)
    scores = Scores(logprob_T=torch.zeros(1), value_T=value_T, value_logits_TB=logits)
    hl_gauss(critic([0.0], [1.0]), scores, low=0.0, high=1.0, bins=3)
    with pytest.raises(ValueError, match=r"between low=-1.0 and high=1.0; make it with bins=Bins.of\(row\)"):
        hl_gauss(critic([0.0], [1.0]), scores, low=-1.0, high=1.0, bins=3)


def test_wrong_critics_are_refused():
    batch = critic([0.0], [1.0])
    with pytest.raises(ValueError, match=r"Scores\.value_T is not assigned"):
        mse(batch, Scores(logprob_T=torch.zeros(1)))
    with pytest.raises(ValueError, match=r"value_logits_TB is not assigned"):
        hl_gauss(batch, says(0.0))
    with pytest.raises(ValueError, match="has 3 bins but hl-gauss was given bins=51"):
        hl_gauss(batch, Scores(logprob_T=torch.zeros(1), value_logits_TB=torch.zeros(1, 3)))
    with pytest.raises(ValueError, match=r"low=1.0 must be below high=0.0"):
        hl_gauss(batch, says(0.0), low=1.0, high=0.0)
    with pytest.raises(ValueError, match="return_T is not assigned"):
        mse(batch.with_(return_T=None), says(0.0))
