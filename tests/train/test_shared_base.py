"""What two adapters on one base cost: the base once, for policies, critics and references."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch

from tests.train.small_runs import ENVS, small_recipe
from turnwise.policy.critics import Critic
from turnwise.recipe.seating import recipe_of
from turnwise.train.estimate import memory_by_part
from turnwise.train.setup import load_policies
from turnwise.train.trainee import Trainee

DUEL: dict[str, Any] = {
    "env": {"id": f"{ENVS}:Duel", "check": False},
    "algorithm": "cory",
    "model": {"name": "nano", "lora": {"rank": 2}},
}
ONE = {**DUEL, "policies": {"white": {}}, "seats": {"left": "white", "right": "white"}}
TWO = {**DUEL, "policies": {"white": {}, "black": {}}, "seats": {"left": "white", "right": "black"}}


def held_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Memory of tensors, each piece counted once."""
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


def learning_memory(changes: dict[str, Any]) -> int:
    """Weights and buffers of policies, critics and references, with a gradient and two moments for what trains."""
    recipe = small_recipe(changes)
    policies = load_policies(recipe)
    tensors = list[torch.Tensor]()
    for name, policy in policies.items():
        learner = Trainee(recipe, name, policy, temperature=1.0).learner
        assert isinstance(learner.critic, Critic)
        trained = [*policy.trainable().values(), *learner.critic.trainable().values()]
        tensors += [*policy.model.parameters(), *policy.model.buffers()]
        tensors += [*learner.critic.parameters(), *learner.critic.buffers()]
        tensors += [torch.empty_like(each) for each in trained for _ in range(3)]
    return held_bytes(tensors)


def test_two_adapters_on_one_base_take_less_than_a_fifth_more_memory_than_one() -> None:
    pytest.importorskip("peft", reason="needs turnwise[lora]")
    assert 1.0 < learning_memory(TWO) / learning_memory(ONE) < 1.2


def test_the_estimate_counts_a_shared_base_once() -> None:
    one, two = (memory_by_part(small_recipe(each), 64, "cpu") for each in (ONE, TWO))
    learned = ("weights", "gradients", "AdamW", "critic", "critic's learning", "reference")
    totals = [sum(size for part, size in each.items() if part.endswith(learned)) for each in (one, two)]
    assert 1.0 < totals[1] / totals[0] < 1.2


def test_a_critic_on_the_same_base_still_learns_by_itself() -> None:
    pytest.importorskip("peft", reason="needs turnwise[lora]")
    recipe = recipe_of(small_recipe(ONE), "white")
    policy = load_policies(recipe)["white"]
    learner = Trainee(small_recipe(ONE), "white", policy, temperature=1.0).learner
    assert learner.critic is not None
    mine = {each.data_ptr() for each in policy.trainable().values()}
    assert mine.isdisjoint({each.data_ptr() for each in learner.critic.trainable().values()})
    assert learner.critic.trainable()
