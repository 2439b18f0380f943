"""Rewards on the scale of a run's whole history: as if computed at once, over batches, ranks and resumes."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import partial

import pytest
import torch

from tests.learn.small_learners import SETTINGS, make_groups, make_learner, make_policy, row
from tests.ops.ranks import as_ranks
from turnwise.algorithm import resolve
from turnwise.batch import Moments
from turnwise.learn.learner import Learner
from turnwise.policy.text import TextPolicy
from turnwise.ranks import ALONE, Ranks
from turnwise.types import Group, NonFiniteError

RUNNING = row("ppo", {"reward": ["running"]})
ADAPTIVE = row("ppo", {"reward": [{"kind": "token-kl", "coef": 0.2, "target": 0.5}]})


def paid(step: int, *, tasks: int = 3, shift: float = 0.0) -> list[Group]:
    """Groups whose returns are far from zero and drift from step to step."""
    rng, groups = random.Random(step), make_groups(tasks=tasks, seed=step)
    for trajectory in (each for group in groups for each in group.trajectories):
        trajectory.turns[-1].reward = shift + 100 + step + rng.gauss(0, 2)
    return groups


def returns_of(steps: Sequence[list[Group]]) -> torch.Tensor:
    """All returns at once, as batches hold them: in single precision, added in double."""
    trajectories = [each for groups in steps for group in groups for each in group.trajectories]
    return torch.tensor([each.turns[-1].reward for each in trajectories], dtype=torch.float32).double()


def told(steps: Sequence[list[Group]], policy: TextPolicy, ranks: Ranks) -> list[Moments]:
    """The history that each step's parts were given."""
    learner, found = Learner(policy, RUNNING, SETTINGS, ranks=ranks), list[Moments]()
    for groups in steps:
        batch = learner.prepare(groups)
        assert batch is not None
        assert batch.history is not None
        assert batch.history.returns is not None
        found.append(batch.history.returns)
    return found


def assert_two_pass(found: Moments, steps: Sequence[list[Group]]) -> None:
    values = returns_of(steps)
    assert found.count == values.numel()
    assert found.mean == pytest.approx(float(values.mean()), rel=1e-14)
    assert found.variance == pytest.approx(float(values.var(correction=0)), rel=1e-11)


@pytest.mark.parametrize("shift", [0.0, 1e5])
def test_the_history_equals_two_passes_over_all_returns(shift: float) -> None:
    steps = [paid(step, shift=shift) for step in range(6)]
    for number, moments in enumerate(told(steps, make_policy(), ALONE), 1):
        assert_two_pass(moments, steps[:number])


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_share_one_history(size: int) -> None:
    steps = [paid(step, tasks=2) for step in range(3)]  # of three ranks one has nothing
    outcomes = as_ranks([partial(told, steps, make_policy()) for _ in range(size)])
    assert all(found == outcomes[0] for found in outcomes)  # to the bit
    for number, moments in enumerate(outcomes[0], 1):
        assert_two_pass(moments, steps[:number])


def test_a_resumed_history_goes_on_to_the_bit() -> None:
    steps = [paid(step) for step in range(4)]
    whole = told(steps, make_policy(), ALONE)
    first = Learner(make_policy(), RUNNING, SETTINGS)
    for groups in steps[:2]:
        first.prepare(groups)
    second = Learner(make_policy(), RUNNING, SETTINGS)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for groups in steps[2:]:
        second.prepare(groups)
    assert second.history.returns == whole[-1]


def test_credit_sees_normalised_and_clipped_returns() -> None:
    groups = paid(0)
    learner = make_learner("ppo", reward=[{"kind": "running", "clip": 0.8}])
    batch = learner.prepare(groups)
    assert batch is not None
    values = returns_of([groups])
    expected = ((values - values.mean()) / values.std(correction=0)).clamp(-0.8, 0.8)
    paid_T = torch.zeros(len(values), dtype=torch.double)
    paid_T.index_add_(0, batch.trajectory_S[batch.sequence_T], batch.reward_T.double())
    torch.testing.assert_close(paid_T, expected, rtol=0, atol=1e-5)


def test_a_first_batch_of_one_and_constant_rewards_earn_nothing() -> None:
    learner = make_learner("ppo", reward=["running"])
    (group, *_) = paid(0, tasks=1)
    group.trajectories = group.trajectories[:1]
    constant = make_groups(seed=1)
    for trajectory in (each for each_group in constant for each in each_group.trajectories):
        trajectory.turns[-1].reward = group.trajectories[0].turns[-1].reward
    for groups in ([group], constant):
        batch = learner.prepare(groups)
        assert batch is not None
        assert not batch.reward_T.any()
        assert learner.learn(batch, 1).metrics["train/reward_std"] == pytest.approx(0, abs=1e-6)


def test_a_batch_that_fails_is_not_remembered() -> None:
    learner = make_learner("ppo", reward=["running"])
    learner.prepare(paid(0))
    before = learner.state_dict()
    assert learner.critic is not None
    next(iter(learner.critic.trainable().values())).data.fill_(float("nan"))
    with pytest.raises(NonFiniteError):
        learner.prepare(paid(1))
    assert learner.state_dict() == before


def test_a_kl_below_its_target_lowers_the_coefficient_and_a_high_one_raises_it() -> None:
    learner = Learner(make_policy(), ADAPTIVE, SETTINGS)
    batch = learner.prepare(make_groups())
    assert batch is not None
    assert learner.learn(batch, 1).metrics["train/kl_coef"] == 0.2  # what this step paid by
    assert learner.history.kl_coef == pytest.approx(0.2 * 0.98)  # policy and reference were the same
    learner.renew_reference(make_policy(seed=1).make_reference())
    for weight in learner.policy.trainable().values():
        weight.data.mul_(3.0)  # far from any reference
    with_kl = learner.prepare(make_groups())
    assert with_kl is not None
    assert with_kl.old_T is not None
    assert with_kl.ref_T is not None
    kl = float((with_kl.old_T - with_kl.ref_T)[with_kl.sampled_T].sum()) / 12  # three groups of four
    expected = 0.2 * 0.98 * (1 + 0.1 * min(max(kl / 0.5 - 1, -0.2), 0.2))
    assert learner.history.kl_coef == pytest.approx(expected)


def test_ranks_and_resumed_learners_share_the_coefficient() -> None:
    def coefficient(policy: TextPolicy, ranks: Ranks) -> float | None:
        learner = Learner(policy, ADAPTIVE, SETTINGS, ranks=ranks)
        for step in (1, 2):
            batch = learner.prepare(make_groups(tasks=2, size=2, seed=step))
            assert batch is not None
            learner.learn(batch, step)
        again = Learner(make_policy(), ADAPTIVE, SETTINGS)
        again.load_state_dict(json.loads(json.dumps(learner.state_dict())))
        assert again.history.kl_coef == learner.history.kl_coef
        return learner.history.kl_coef

    alone = coefficient(make_policy(), ALONE)
    first, second = as_ranks([partial(coefficient, make_policy()) for _ in range(2)])
    assert first == second == pytest.approx(alone, rel=1e-6)
    assert alone != 0.2


def test_rows_with_two_coefficients_or_a_history_out_of_place_are_told_so() -> None:
    twice = row("ppo", {"reward": [{"kind": "token-kl", "target": 1.0}, {"kind": "token-kl", "target": 2.0}]})
    with pytest.raises(ValueError, match="there is one coefficient; remove one"):
        resolve(twice)
    with pytest.raises(ValueError, match="coef=0 stays 0"):
        resolve(row("ppo", {"reward": [{"kind": "token-kl", "coef": 0.0, "target": 2.0}]}))
    late = row("ppo", {"reward": ["token-kl", "running"]})
    assert "place it before token-kl" in " ".join(resolve(late))
    assert not resolve(row("ppo", {"reward": ["running", "token-kl"]}))
