"""Pairs that are only looked at: the numbers of the loss, without an update."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tests.learn.small_learners import SETTINGS, judged, make_groups, make_learner, make_policy, weights
from tests.ops.ranks import as_ranks
from turnwise.algorithm import preset
from turnwise.learn.learner import Learner
from turnwise.ops.pairs import PAIR_METRICS
from turnwise.policy.text import TextPolicy
from turnwise.ranks import Ranks


def test_an_assessment_has_the_measures_of_the_loss_on_the_same_pairs() -> None:
    groups, learner = judged(make_groups(tasks=4)), Learner(make_policy(), preset("tdpo2"), SETTINGS)
    for step in (1, 2):
        batch = learner.prepare(groups)
        assert batch is not None
        learner.learn(batch, step)
    before, found = weights(learner), learner.assess(groups)
    assert all(torch.equal(before[name], weight) for name, weight in weights(learner).items())
    assert found.keys() == PAIR_METRICS.keys()
    batch = learner.prepare(groups)
    assert batch is not None
    metrics = learner.learn(batch, 3).metrics  # one update: measured before it
    assert found["pairs/accuracy"] > 0.5
    assert found == pytest.approx({name: metrics[name] for name in PAIR_METRICS}, rel=1e-4, abs=1e-6)


def test_nothing_has_moved_before_the_first_update_and_a_row_needs_no_reference() -> None:
    learner, groups = make_learner("grpo", regularizers=[]), make_groups()
    assert learner.reference is None
    found = learner.assess(groups)
    assert 0 <= found.pop("pairs/accuracy") <= 1  # of ties, which rounding may break
    assert found == pytest.approx(dict.fromkeys(PAIR_METRICS.keys() - {"pairs/accuracy"}, 0.0), abs=1e-5)
    batch = learner.prepare(groups)
    assert batch is not None
    learner.learn(batch, 1)
    assert learner.assess(groups)["pairs/margin"] > 0  # still compared with what it was when first asked


def test_another_policy_can_be_compared_with() -> None:
    learner = make_learner("dpo")
    assert learner.assess(make_groups(), against=make_policy(seed=1).make_reference())["pairs/kl_chosen"] > 0


def test_equal_answers_are_no_pairs() -> None:
    groups = make_groups()
    for trajectory in (each for group in groups for each in group.trajectories):
        trajectory.turns[-1].reward = 1.0
    assert make_learner("dpo").assess(groups) == {}


def test_ranks_assess_what_one_does() -> None:
    groups = make_groups(tasks=5)
    other = make_policy(seed=1).make_reference()

    def work(policy: TextPolicy, ranks: Ranks) -> dict[str, float]:
        return Learner(policy, preset("dpo"), SETTINGS, ranks=ranks).assess(groups, against=other)

    alone = Learner(make_policy(), preset("dpo"), SETTINGS).assess(groups, against=other)
    for found in as_ranks([partial(work, make_policy()) for _ in range(3)]):
        assert found == pytest.approx(alone, rel=1e-4)
