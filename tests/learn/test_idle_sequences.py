"""Sequences without advantage cost no backward pass and change nothing that is learnt, measured or scaled."""

from typing import Any

import pytest
import torch

from tests.learn.small_learners import SETTINGS, drift, make_groups, make_learner
from turnwise.algorithm import Algorithm, preset
from turnwise.batch import Scores, TokenBatch
from turnwise.learn.learner import Learner
from turnwise.learn.reporting import Report
from turnwise.policy.text import TextPolicy
from turnwise.recipe.schema import Train
from turnwise.types import Group, StopReason, Trajectory, Turn

EVERYTHING: dict[str, Any] = {"regularizers": [{"kind": "entropy", "coef": 0.0}]}
"""A penalty that weighs nothing: with it every sequence goes through the backward pass."""


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


class Watched(TextPolicy):
    """Counts the sampled tokens that it scores with and without a gradient."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seen = {True: 0, False: 0}

    def score(self, batch: TokenBatch, **options: Any) -> Scores:
        self.seen[torch.is_grad_enabled()] += int(batch.sampled_T.sum())
        return super().score(batch, **options)


def learned(row: Algorithm) -> tuple[dict[str, torch.Tensor], dict[bool, int], Report]:
    """The gradient of the step, how many tokens were scored with a gradient and without, and the report."""
    policy = Watched.load("nano")
    assert isinstance(policy, Watched)
    learner = Learner(policy, row, Train(learning_rate=1e-3))
    batch = learner.prepare([group("mixed", (1.0, 0.0)), group("equal", (1.0, 1.0))])
    assert batch is not None
    report = learner.learn(batch, step=1)
    gradient = {name: value.grad for name, value in policy.trainable().items() if value.grad is not None}
    return gradient, policy.seen, report


def test_groups_of_equal_rewards_are_left_out_of_the_backward_pass_but_not_of_the_mean() -> None:
    row = preset("dr-grpo")
    assert row.moves_by_advantage_alone
    lean, seen, _ = learned(row)
    assert seen == {True: 4, False: 4}  # a gradient for the two sampled tokens of each try in the mixed group
    whole, all_seen, _ = learned(row.override(EVERYTHING))
    assert all_seen == {True: 8, False: 0}
    for name, value in lean.items():
        torch.testing.assert_close(value, whole[name], rtol=1e-4, atol=1e-8)


def test_diagnostics_are_those_of_the_whole_minibatch() -> None:
    row = preset("dr-grpo")
    *_, lean = learned(row)
    *_, whole = learned(row.override(EVERYTHING))
    assert lean.metrics["loss/tokens"] == 8.0
    for name in ("loss/entropy", "loss/sampler_kl", "loss/advantage_std", "loss/clip_fraction"):
        assert lean.metrics[name] == pytest.approx(whole.metrics[name], rel=1e-5, abs=1e-9), name


@pytest.mark.parametrize("measure", ["kl", "clips"])
@pytest.mark.parametrize("micro_tokens", [1, 16384])
def test_drift_is_that_of_the_whole_minibatch(measure: str, micro_tokens: int) -> None:
    train = SETTINGS.model_copy(update={"micro_tokens": micro_tokens})
    groups = drift(make_groups(), by=1.5)
    for trajectory in groups[0].trajectories:
        trajectory.turns[-1].reward = 1.0  # nothing to compare: the whole group is idle
    reports: list[Report] = []
    for extra in ({}, EVERYTHING):
        scale = {"kind": "drift", "measure": measure, "target": 1e-3}
        learner = make_learner("dr-grpo", train=train, scale=scale, ratio={"against": "mu"}, minibatches=2, **extra)
        batch = learner.prepare(groups)
        assert batch is not None
        reports.append(learner.learn(batch, 1))
    lean, whole = (report.metrics for report in reports)
    assert whole["train/drift"] > 0
    for name in ("train/drift", "train/scale", "loss/tokens", "train/gradient_norm"):
        assert lean[name] == pytest.approx(whole[name], rel=1e-4), name


def test_a_step_in_which_nothing_moves_still_has_a_report() -> None:
    learner = make_learner("dr-grpo")
    batch = learner.prepare([group("equal", (1.0, 1.0)), group("same", (0.0, 0.0))])
    assert batch is not None
    report = learner.learn(batch, 1)
    assert report.metrics["loss/tokens"] == 8.0
    assert report.metrics["train/gradient_norm"] == 0.0


def test_imitation_and_critics_see_every_sequence() -> None:
    assert not preset("st-ppo").moves_by_advantage_alone
    assert not preset("grpo").moves_by_advantage_alone  # it has a KL penalty
    assert not preset("dr-grpo").override({"surrogate": "nll"}).moves_by_advantage_alone
