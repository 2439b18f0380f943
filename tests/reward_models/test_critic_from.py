"""A critic that begins as a reward model: the same numbers, one message for a folder that does not fit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.policy.shapes import make_model
from tests.reward_models.small_pairs import tiny, write_pairs
from tests.train.small_runs import Screen, small_recipe, timeless
from turnwise.learn.learner import Learner
from turnwise.policy.scalar_models import load_scalar_model
from turnwise.policy.text import TextPolicy
from turnwise.recipe.schema import Recipe, Train
from turnwise.reward_models import train_reward_model
from turnwise.reward_models.reward_policy import RewardPolicy, token_scores
from turnwise.rollout.packing import pack
from turnwise.train.setup import require_critics
from turnwise.train.stages import resume, train
from turnwise.types import Group, StopReason, Trajectory, Turn

CHAT: dict[str, Any] = {"model": "pico-chat", "env": {"id": "chat/prompts", "check": False}, "algorithm": "ppo"}


@pytest.fixture(scope="module")
def rewarding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("critic")
    train_reward_model(write_pairs(folder / "pairs.jsonl", lines=16), folder / "model", tiny(epochs=1))
    return folder / "model"


def recipe_with(source: Path | str, **changes: Any) -> Recipe:
    return small_recipe({**CHAT, "train": {"critic_from": str(source)}, **changes})


def test_the_value_before_a_token_is_the_score_of_the_text_up_to_it(rewarding: Path) -> None:
    policy = TextPolicy.load("pico-chat")
    ids = policy.tokenizer.encode("the film is great and the end is dull")
    turns = [Turn(prompt_ids=ids[:3], sampled_ids=ids[3:])]
    batch = pack([Group(id="g", trajectories=[Trajectory(id="t", turns=turns, stop=StopReason.DONE)])])
    critic = policy.make_critic(bins=None, shared=False, source=str(rewarding))
    value_T = critic.assess(batch, policy).value_T
    assert value_T is not None
    model, head = load_scalar_model(rewarding)
    with torch.no_grad():
        score_T = token_scores(model, head, batch)
    torch.testing.assert_close(value_T[3:], score_T[2:-1])
    assert value_T[3:].std() > 0.01
    assert len(critic.trainable()) > 2  # the trunk trains, not the head alone


def test_a_learner_begins_with_the_reward_model_and_trains_all_of_it(rewarding: Path) -> None:
    recipe = recipe_with(rewarding)
    learner = Learner(TextPolicy.load("pico-chat"), recipe.algorithm, recipe.train)
    model, head = load_scalar_model(rewarding)
    assert learner.critic is not None
    named = learner.critic.trainable()
    assert torch.equal(named["head.weight"], head.weight)
    assert torch.equal(named["trunk.embed_tokens.weight"], model.state_dict()["model.embed_tokens.weight"])


def test_a_run_that_is_resumed_keeps_what_the_critic_learned(rewarding: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    changes = {"rollout": {"episodes": 4, "max_turns": 1, "max_tokens": 8}, "checkpoint": {"every": 1}}
    for folder, steps in ((whole, 2), (parts, 1)):
        recipe = recipe_with(rewarding, **changes, train={"critic_from": str(rewarding), "steps": steps})
        train(recipe, folder, console=Screen())
    resume(parts, overrides={"train": {"steps": 2}}, console=Screen())
    assert timeless(parts) == timeless(whole)
    with pytest.raises(ValueError, match="critic_from cannot change in the middle of a run"):
        resume(parts, overrides={"train": {"critic_from": None, "steps": 3}})


def test_a_folder_that_is_not_a_reward_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    TextPolicy.load("pico-chat").save(tmp_path / "policy")
    RewardPolicy(TextPolicy.load("pico")).save(tmp_path / "pico")
    wide = TextPolicy(make_model("llama"), TextPolicy.load("pico-chat").tokenizer)
    RewardPolicy(wide).save(tmp_path / "wide")
    for source, message in {
        "missing": "missing is not a reward model; train one with: turnwise reward-model",
        "policy": "policy has 2 labels; a reward model has one number for an answer",
        "pico": "pico has another tokenizer than the policy; train one from the policy's model",
        "wide": "wide is a llama of width .*, and the policy a",
    }.items():
        with pytest.raises(ValueError, match=message):
            train(recipe_with(tmp_path / source), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_frozen_policy_needs_no_critic_and_may_have_another_model(rewarding: Path) -> None:
    recipe = recipe_with(
        rewarding,
        env={"id": "tests.train.recorded_runs:Duet", "check": False},
        policies={"writer": {}, "rival": {"model": "pico", "frozen": True}},
        seats={"first": "writer", "second": "rival"},
    )
    require_critics(recipe, {"writer": TextPolicy.load("pico-chat"), "rival": TextPolicy.load("pico")})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "grpo"}, "grpo has no critic; remove it"),
        ({"train": {"critic_from": "rm", "critic": "shared"}}, "set train.critic=separate"),
        ({"algorithm": {"preset": "ppo", "critic": {"loss": "hl-gauss"}}}, "needs bins and a reward model has one"),
        ({"model": {"name": "pico-chat", "lora": {"rank": 4}}}, "model.lora asks for less"),
    ],
)
def test_recipes_that_have_no_place_for_a_reward_model_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"train.critic_from=rm: .*{message}"):
        recipe_with("rm", **changes)


def test_without_a_source_the_critic_is_as_before() -> None:
    assert Train().critic_from is None
    critic = TextPolicy.load("pico-chat").make_critic(bins=None, shared=False)
    assert not critic.head.weight.any()
