"""Losses on answers: numbers by hand, gradients, and who may use them."""

import math

import pytest
import torch
from torch import Tensor

from tests.learn.small_learners import SETTINGS, make_policy
from turnwise.algorithm import compute_credit, compute_loss
from turnwise.batch import Scores, TokenBatch
from turnwise.learn.learner import Learner
from turnwise.ops.weights import Counts
from turnwise.reward_models.answer_losses import row_of
from turnwise.rollout.packing import pack
from turnwise.types import Group, StopReason, Trajectory, Turn


def answer(reward: float, *, turns: int = 1) -> Trajectory:
    spoken = [Turn(prompt_ids=[1, 2], sampled_ids=[3, 4]) for _ in range(turns)]
    spoken[-1].reward = reward
    return Trajectory(id=str(reward), turns=spoken, stop=StopReason.DONE, terminated=True)


def make_batch(loss: str, *rewards: list[float]) -> TokenBatch:
    groups = [Group(id=f"g{n}", trajectories=[answer(each) for each in row]) for n, row in enumerate(rewards)]
    return compute_credit(row_of(loss), pack(groups))


def loss_of(loss: str, batch: TokenBatch, value_T: Tensor) -> Tensor:
    scores = Scores(logprob_T=torch.zeros_like(value_T), value_T=value_T)
    batch = batch.with_(old_T=torch.zeros_like(value_T))
    return compute_loss(row_of(loss), batch, scores, counts=Counts.of(batch)).total


def values(batch: TokenBatch, *last: float) -> Tensor:
    """Scores of the answers at their last tokens; what comes before must not matter."""
    value_T = torch.full((batch.tokens,), 7.0)
    value_T[3::4] = torch.tensor(last)
    return value_T


def test_bradley_terry_is_the_mean_over_all_pairs_of_a_ranking_and_then_over_groups() -> None:
    batch = make_batch("bradley-terry", [1.0, 0.0], [3.0, 1.0, 2.0])
    found = loss_of("bradley-terry", batch, values(batch, 0.5, -0.5, 2.0, 0.0, 1.0))
    log_sigmoid = [-math.log1p(math.exp(-margin)) for margin in (1.0, 2.0, 1.0, 1.0)]
    assert float(found) == pytest.approx(-(log_sigmoid[0] + sum(log_sigmoid[1:]) / 3) / 2)
    assert float(loss_of("bradley-terry", batch, torch.zeros(batch.tokens))) == pytest.approx(math.log(2))


def test_regression_is_half_the_squared_distance_to_the_reward() -> None:
    batch = make_batch("regression", [1.0, 0.0])
    assert float(loss_of("regression", batch, values(batch, 0.5, -1.0))) == pytest.approx((0.125 + 0.5) / 2)


@pytest.mark.parametrize("loss", ["bradley-terry", "regression"])
def test_gradients_are_those_of_finite_differences_and_only_at_the_ends_of_answers(loss: str) -> None:
    batch = make_batch(loss, [1.0, 0.0], [0.0, 2.0, 1.0])
    value_T = torch.linspace(-0.9, 0.9, batch.tokens, dtype=torch.double).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss_of(loss, batch, x), value_T)
    loss_of(loss, batch, value_T).backward()
    assert value_T.grad is not None
    assert (value_T.grad != 0).nonzero().flatten().tolist() == list(range(3, batch.tokens, 4))


def test_a_text_policy_has_no_scores_of_answers() -> None:
    with pytest.raises(ValueError, match="needs a number for every answer, from a reward model"):
        Learner(make_policy(), row_of("bradley-terry"), SETTINGS)
