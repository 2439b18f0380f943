"""The gradient of every row, by finite differences or against its closed form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.ops.batches import Case, known, random_case
from turnwise.algorithm import PRESETS, Algorithm, compute_credit, compute_loss, preset
from turnwise.batch import Scores, TokenBatch

STOPPED = {"cispo", "minirl", "minirl-r2", "minirl-r3"}
"""Rows whose weights are stop-gradients: a finite difference would see through them."""

STOPPED_IN_PAIRS = {"tdpo2", "p3o-v1", "p3o-v2"}
"""The same inside pairs; tests/ops/test_pair_losses.py has their gradients."""


def total(row: Algorithm, credited: TokenBatch, logprob_T: Tensor, value_T: Tensor) -> Tensor:
    entropy_T = torch.where(credited.sampled_T, logprob_T**2, 0)
    scores = Scores(
        logprob_T=logprob_T,
        value_T=value_T,
        entropy_T=entropy_T,
        reverse_kl_T=entropy_T,
        uniform_T=known(credited.old_uniform_T) * 1.1,
    )
    return compute_loss(row, credited, scores).total


def moved_away(case: Case) -> tuple[Tensor, Tensor]:
    """Log-probs and values that differ from the stored ones, finite everywhere."""
    value_T = case.batch.value_T
    assert value_T is not None
    return torch.nan_to_num(case.logprob_T), torch.nan_to_num(value_T * 0.9 + 0.1)


@pytest.mark.parametrize("name", sorted(set(PRESETS) - STOPPED - STOPPED_IN_PAIRS))
def test_gradient_equals_finite_differences(name: str) -> None:
    case = random_case(11, groups=2)
    row = preset(name)
    credited = compute_credit(row, case.batch)
    logprob_T, value_T = (leaf.requires_grad_() for leaf in moved_away(case))
    loss = total(row, credited, logprob_T, value_T)
    gradients = torch.autograd.grad(loss, [logprob_T, value_T], allow_unused=True)
    step = 1e-6
    for which, gradient in enumerate(gradients):
        for token in range(case.batch.tokens):
            shifted: list[float] = []
            for sign in (1, -1):
                leaves = [logprob_T.detach().clone(), value_T.detach().clone()]
                leaves[which][token] += sign * step
                shifted.append(float(total(row, credited, leaves[0], leaves[1])))
            numeric = (shifted[0] - shifted[1]) / (2 * step)
            analytic = 0.0 if gradient is None else float(gradient[token])
            assert analytic == pytest.approx(numeric, rel=1e-5, abs=1e-8), (which, token)


@pytest.mark.parametrize("name", sorted(STOPPED))
def test_stopped_weights_multiply_the_score_function(name: str) -> None:
    case, row = random_case(12), preset(name)
    credited = compute_credit(row, case.batch)
    logprob_T = moved_away(case)[0].requires_grad_()
    total(row, credited, logprob_T, torch.zeros_like(logprob_T)).backward()
    sampled_T, advantage_T = credited.sampled_T, credited.advantage_T
    old_T, mu_T = credited.old_T, credited.mu_T
    assert advantage_T is not None
    assert old_T is not None
    assert mu_T is not None
    ratio_T = (logprob_T.detach() - old_T).exp()
    if name == "cispo":
        expected_T = -ratio_T.clamp(0, 1.28) * advantage_T / int(sampled_T.sum())
    else:
        masked_T = ((advantage_T > 0) & (ratio_T > 1.27)) | ((advantage_T < 0) & (ratio_T < 0.8))
        weight_T = (logprob_T.detach() - mu_T).exp().clamp_max(5)
        sequences = len({int(s) for s in credited.sequence_T[sampled_T]})
        expected_T = torch.where(masked_T, 0, -weight_T * advantage_T) / sequences
    assert logprob_T.grad is not None
    torch.testing.assert_close(logprob_T.grad[sampled_T], expected_T[sampled_T], rtol=1e-9, atol=1e-12)


def test_a_small_step_along_the_gradient_raises_the_rewarded_answer() -> None:
    """A sign test that no bookkeeping can fake: the better try becomes more likely, the worse one less."""
    case = random_case(13, groups=1, tries=2)
    row = preset("ppo").override({"normalizer": "none"})
    credited = compute_credit(row, case.batch.with_(value_T=torch.zeros(case.batch.tokens, dtype=torch.float64)))
    assert credited.old_T is not None
    assert credited.advantage_T is not None
    logprob_T = torch.nan_to_num(credited.old_T).requires_grad_()
    total(row, credited, logprob_T, torch.zeros_like(logprob_T)).backward()
    assert logprob_T.grad is not None
    wanted_T = credited.advantage_T != 0
    assert bool(wanted_T.any())
    assert bool((logprob_T.grad[wanted_T].sign() == -credited.advantage_T[wanted_T].sign()).all())
