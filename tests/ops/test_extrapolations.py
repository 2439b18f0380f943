"""APO's extrapolation: numbers by hand, and its acceleration on exact softmax policies."""

import math

import pytest
import torch

from turnwise.algorithm import Algorithm, explain
from turnwise.ops.extrapolations import effective_iterations, exact_iterations, parameters

REWARD_A = torch.linspace(0, 1, 20, dtype=torch.double)


def test_it_goes_on_from_the_new_weights_by_a_share_of_the_last_change() -> None:
    now, before = torch.tensor([2.0, -1.0]), torch.tensor([1.0, 1.0])
    assert parameters(now, before, alpha=0.5).tolist() == [2.5, -2.0]
    assert torch.equal(parameters(now, before, alpha=0.0), now)


def test_two_iterations_by_hand() -> None:
    # Logit differences of two arms, r = (1, 0), alpha ½: 1; then 1 + ½·1 + 1 = 2½; then 2½ + ½·1½ + 1 = 4¼.
    found = exact_iterations(torch.tensor([1.0, 0.0]), alpha=0.5, beta=1.0, iterations=3)
    assert [float(logprob_A[0] - logprob_A[1]) for logprob_A in found] == pytest.approx([1.0, 2.5, 4.25])


@pytest.mark.parametrize(("alpha", "needed"), [(0.3, 43), (0.5, 59), (0.7, 93)])
def test_plain_iteration_needs_as_many_more_steps_as_the_paper_says(alpha: float, needed: int) -> None:
    plain = exact_iterations(REWARD_A, alpha=0.0, beta=1.0, iterations=100)
    accelerated = exact_iterations(REWARD_A, alpha=alpha, beta=1.0, iterations=30)[-1]
    target = float(accelerated.exp() @ REWARD_A)
    assert 1 + sum(float(policy.exp() @ REWARD_A) < target for policy in plain) == needed
    assert math.floor(effective_iterations(30, alpha=alpha)) + 1 == needed


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.7])
def test_the_policy_is_that_of_the_effective_number_of_iterations(alpha: float) -> None:
    for count, logprob_A in enumerate(exact_iterations(REWARD_A, alpha=alpha, beta=0.5, iterations=12), start=1):
        expected_A = (REWARD_A / 0.5 * effective_iterations(count, alpha=alpha)).log_softmax(-1)
        torch.testing.assert_close(logprob_A, expected_A)


def test_extrapolating_from_the_extrapolated_policy_is_something_else() -> None:
    now = policy = torch.zeros_like(REWARD_A)
    for _ in range(30):
        now = policy + REWARD_A
        policy = parameters(now, policy, alpha=0.5)  # the common mistake: it must start from the last `now`
    assert float(now[-1] - now[0]) < 0.8 * effective_iterations(30, alpha=0.5)


def test_it_is_explained_and_checked() -> None:
    row = Algorithm.of({"surrogate": "nll", "extrapolate": {"kind": "parameters", "alpha": 0.5}})
    assert "extrapolate: parameters(alpha=0.5)\n    θ_{t+1} = θ̂_{t+1} + alpha (θ̂_{t+1} − θ̂_t)" in explain(row)
    assert "extrapolate" not in explain(Algorithm.of({"surrogate": "nll"}))
    with pytest.raises(ValueError, match=r"extrapolate\.parameters\.alpha: Input should be less than 1"):
        Algorithm.of({"extrapolate": {"kind": "parameters", "alpha": 1.0}})
