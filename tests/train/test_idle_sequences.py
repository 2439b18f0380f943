"""Sequences without advantage cost nothing and change nothing."""

import torch

from turnwise.algorithm import Algorithm, preset
from turnwise.policy.text import TextPolicy
from turnwise.train.config import Train
from turnwise.train.learner import Learner
from turnwise.types import Group, StopReason, Trajectory, Turn


def group(name: str, rewards: tuple[float, ...]) -> Group:
    tries = [
        Trajectory(
            id=f"{name}/{number}",
            turns=[Turn(prompt_ids=[5, 6, 7], sampled_ids=[8 + number, 9], logprobs=[-1.0, -1.0], reward=reward)],
            stop=StopReason.DONE,
            terminated=True,
        )
        for number, reward in enumerate(rewards)
    ]
    return Group(id=name, trajectories=tries)


def learned(row: Algorithm) -> tuple[dict[str, torch.Tensor], float]:
    """The gradient of the step, and how many tokens it saw."""
    policy = TextPolicy.load("nano")
    learner = Learner(policy, row, Train(learning_rate=1e-3))
    batch = learner.prepare([group("mixed", (1.0, 0.0)), group("equal", (1.0, 1.0))])
    assert batch is not None
    report = learner.learn(batch, step=1)
    gradient = {name: value.grad for name, value in policy.trainable().items() if value.grad is not None}
    return gradient, report.metrics["loss/tokens"]


def test_groups_of_equal_rewards_are_left_out_of_the_model_but_not_of_the_mean() -> None:
    row = preset("dr-grpo")
    assert row.moves_by_advantage_alone
    lean, seen = learned(row)
    assert seen == 4.0  # the two sampled tokens of each try in the mixed group
    whole, all_seen = learned(row.override({"regularizers": [{"kind": "entropy", "coef": 0.0}]}))
    assert all_seen == 8.0
    for name, value in lean.items():
        torch.testing.assert_close(value, whole[name], rtol=1e-4, atol=1e-8)


def test_imitation_and_critics_see_every_sequence() -> None:
    assert not preset("st-ppo").moves_by_advantage_alone
    assert not preset("grpo").moves_by_advantage_alone  # it has a KL penalty
    assert not preset("dr-grpo").override({"surrogate": "nll"}).moves_by_advantage_alone
