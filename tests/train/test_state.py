"""A checkpoint's state: everything a learner needs to go on bit for bit, and groups that were played ahead."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.learn.small_learners import SETTINGS, make_groups, make_learner, make_policy, moved, row, weights
from tests.model_families import make_family
from turnwise.learn.learner import Learner
from turnwise.policy.text import TextPolicy
from turnwise.rollout.packing import pack
from turnwise.train.state import load_learner, read_ahead, read_state, write_state

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "separate critic": ("st-ppo", {"minibatches": 2}, {}),
    "shared critic": ("st-ppo", {"minibatches": 2}, {"critic": "shared"}),
    "no critic": ("rebn", {}, {}),
    "extrapolation": ("rebn", {"epochs": 2, "extrapolate": {"kind": "parameters", "alpha": 0.5}}, {}),
    "mixed logits": ("rebn", {"extrapolate": {"kind": "logits", "alpha": 0.5}}, {}),
    "critic in warm-up": ("ppo", {"critic": {"level": "token", "warmup": 5}, "minibatches": 2}, {}),
}


def learn(learner: Learner, *, first: int, last: int) -> None:
    for step in range(first, last + 1):
        batch = learner.prepare(make_groups(seed=step))
        assert batch is not None
        learner.learn(batch, step)


def assert_same(learner: Learner, other: Learner) -> None:
    assert moved(weights(learner), weights(other)) == set()
    for mine, theirs in ((learner.optimizer, other.optimizer), (learner.critic_optimizer, other.critic_optimizer)):
        if mine is not None and theirs is not None:
            assert set(mine.tensors()) == set(theirs.tensors())
            assert all(torch.equal(tensor, theirs.tensors()[name]) for name, tensor in mine.tensors().items())
    assert learner.state_dict() == other.state_dict()
    before, others = (each.extrapolation.before if each.extrapolation else {} for each in (learner, other))
    assert set(before) == set(others)
    assert all(torch.equal(weight, others[name]) for name, weight in before.items())


@pytest.mark.parametrize("lora", [False, True], ids=["full", "adapter"])
@pytest.mark.parametrize("name", CASES)
def test_a_learner_from_a_checkpoint_goes_on_bit_for_bit(tmp_path: Path, name: str, lora: bool) -> None:
    if lora:
        pytest.importorskip("peft", reason="needs turnwise[lora]")
    preset, changes, settings = CASES[name]
    train = SETTINGS.model_copy(update=settings)
    learner = make_learner(preset, train=train, lora=lora, **changes)
    learn(learner, first=1, last=2)
    write_state(tmp_path, [learner], {"progress": {"step": 2}})
    assert read_state(tmp_path)["progress"] == {"step": 2}
    resumed = make_learner(preset, train=train, lora=lora, **changes)
    load_learner(tmp_path, resumed)
    assert_same(learner, resumed)
    for each in (learner, resumed):
        learn(each, first=3, last=4)
    assert_same(learner, resumed)


@pytest.mark.parametrize("family", ["qwen3-moe", "gpt-neox", "gemma2"])
def test_a_learner_of_any_family_goes_on_bit_for_bit(tmp_path: Path, family: str) -> None:
    learner, resumed = (Learner(TextPolicy(make_family(family)), row("rebn", {}), SETTINGS, seed=0) for _ in range(2))
    learn(learner, first=1, last=2)
    write_state(tmp_path, [learner], {})
    load_learner(tmp_path, resumed)
    assert_same(learner, resumed)


def test_half_precision_weights_go_on_from_their_single_precision_copies(tmp_path: Path) -> None:
    train = SETTINGS.model_copy(update={"learning_rate": 1e-5})
    learners = [Learner(make_policy(dtype=torch.bfloat16), row("rebn", {}), train, seed=0) for _ in range(2)]
    learn(learners[0], first=1, last=2)
    write_state(tmp_path, [learners[0]], {})
    load_learner(tmp_path, learners[1])
    assert_same(*learners)
    for each in learners:
        learn(each, first=3, last=4)
    assert_same(*learners)


def test_loading_happens_in_place_so_that_an_engine_sees_it(tmp_path: Path) -> None:
    learner = make_learner("rebn")
    write_state(tmp_path, [learner], {})
    addresses = [weight.data_ptr() for weight in learner.policy.trainable().values()]
    start = weights(learner)
    learn(learner, first=1, last=1)
    assert moved(start, weights(learner))
    load_learner(tmp_path, learner)
    assert moved(start, weights(learner)) == set()
    assert [weight.data_ptr() for weight in learner.policy.trainable().values()] == addresses
    assert learner.updates == 0
    assert learner.optimizer.tensors() == {}


@pytest.mark.parametrize("lora", [False, True], ids=["full", "adapter"])
def test_the_folder_is_a_model_that_transformers_loads_and_that_says_the_same(tmp_path: Path, lora: bool) -> None:
    if lora:
        pytest.importorskip("peft", reason="needs turnwise[lora]")
    learner = make_learner("rebn", lora=lora)
    learn(learner, first=1, last=1)
    write_state(tmp_path, [learner], {})
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    batch = pack(make_groups())
    torch.testing.assert_close(
        learner.policy.score(batch).logprob_T, TextPolicy(loaded).score(batch).logprob_T, atol=1e-5, rtol=0
    )


def test_groups_played_ahead_come_back_as_they_were(tmp_path: Path) -> None:
    ahead = {7: make_groups(seed=7), 8: make_groups(seed=8)}
    write_state(tmp_path, [make_learner("rebn")], {}, ahead)
    assert read_ahead(tmp_path) == ahead
    other = tmp_path / "without"
    other.mkdir()
    write_state(other, [make_learner("rebn")], {})
    assert read_ahead(other) == {}
