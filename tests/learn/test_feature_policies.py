"""Policies without words learn through the same learner: rows, critics, references and ranks included."""

from __future__ import annotations

import pytest
import torch

from turnwise.algorithm import preset
from turnwise.learn.learner import Learner
from turnwise.policy.features import ACTIONS, FEATURES, Discrete, FeaturePolicy, Gaussian
from turnwise.recipe.schema import Train
from turnwise.types import Group, StopReason, Trajectory, Turn

SETTINGS = Train(steps=30, learning_rate=2e-2, critic_learning_rate=2e-2)


def play(policy: FeaturePolicy, *, episodes: int, seed: int) -> list[Group]:
    """Two steps each: the right action is the sign of the first feature; two tries at every task."""
    generator = torch.Generator().manual_seed(seed)
    groups: list[Group] = []
    for task in range(episodes // 2):
        features = torch.randn(2, 3, generator=generator)
        tries: list[Trajectory] = []
        for number in range(2):
            chosen = policy.act(features, generator=generator)
            turns = [_turn(policy, features[k], chosen.chosen_N[k], float(chosen.logprob_N[k])) for k in range(2)]
            tries.append(
                Trajectory(id=f"{task}/{number}", turns=turns, stop=StopReason.DONE, terminated=True, seed=task)
            )
        groups.append(Group(id=f"{task}", trajectories=tries))
    return groups


def _turn(policy: FeaturePolicy, features: torch.Tensor, chosen: torch.Tensor, logprob: float) -> Turn:
    discrete = isinstance(policy.actions, Discrete)
    right = (int(chosen) if discrete else int(chosen[0] > 0)) == int(features[0] > 0)
    streams = {FEATURES: features.tolist(), **({} if discrete else {ACTIONS: chosen.tolist()})}
    ids = [int(chosen)] if discrete else [0]
    return Turn(sampled_ids=ids, logprobs=[min(logprob, 0.0)], reward=float(right), streams=streams)


@pytest.mark.parametrize("name", ["ppo", "st-ppo", "turn-ppo-drift", "grpo", "turn-gae", "rebn", "minirl"])
def test_a_feature_policy_learns_under_rows_with_critics_references_and_groups(name: str) -> None:
    row = preset(name)
    if row.sampling.options.get("size"):
        row = row.override({"sampling": {"size": 2}})
    policy = FeaturePolicy.mlp(3, actions=Discrete(count=2), hidden=(16,), seed=1)
    learner = Learner(policy, row, SETTINGS)
    success: list[float] = []
    for step in range(1, 31):
        groups = play(policy, episodes=64, seed=step)
        rewards = [turn.reward for group in groups for each in group.trajectories for turn in each.turns]
        success.append(sum(rewards) / len(rewards))
        batch = learner.prepare(groups)
        if batch is not None:
            learner.learn(batch, step)
    assert sum(success[:3]) / 3 < 0.65
    assert sum(success[-3:]) / 3 > 0.85, success


def test_the_critic_and_the_policy_share_no_parameter() -> None:
    policy = FeaturePolicy.mlp(3, actions=Discrete(count=2), value=True)
    learner = Learner(policy, preset("ppo"), SETTINGS)
    assert learner.critic is not None
    mine = {id(each) for each in policy.trainable().values()}
    assert mine.isdisjoint(id(each) for each in learner.critic.trainable().values())


def test_continuous_actions_travel_with_their_turns() -> None:
    policy = FeaturePolicy.mlp(3, actions=Gaussian(size=2), hidden=(8,), seed=0)
    learner = Learner(policy, preset("reinforce"), SETTINGS)
    batch = learner.prepare(play(policy, episodes=8, seed=0))
    assert batch is not None
    assert batch.extra_T[ACTIONS].shape == (batch.tokens, 2)
    assert learner.learn(batch, 1).metrics["train/gradient_norm"] > 0


def test_what_a_feature_policy_cannot_provide_is_refused_by_name() -> None:
    policy = FeaturePolicy.mlp(3, actions=Discrete(count=2))
    full = preset("grpo").override({"regularizers": [{"kind": "kl", "estimator": "full"}]})
    with pytest.raises(ValueError, match=r"regularizers=kl needs the full KL from the policy to the reference"):
        Learner(policy, full, SETTINGS)
    with pytest.raises(ValueError, match="a feature policy has a scalar critic"):
        Learner(policy, preset("ppo").override({"critic": {"loss": "hl-gauss"}}), SETTINGS)
