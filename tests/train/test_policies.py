"""Several policies at several seats: who learns, who does not, and that a killed run finds all of them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.train.small_runs import (
    ENVS,
    LostMachineError,
    Screen,
    Stopping,
    last_tensors,
    played,
    rows,
    run,
    small_recipe,
    timeless,
    trajectories,
)
from turnwise.audit.replay import replay_step
from turnwise.audit.replay_episode import replay_episode
from turnwise.audit.verify import verify_run
from turnwise.learn.learner import Learner
from turnwise.policy.text import TextPolicy
from turnwise.policy.text_lora import LoraSettings, share_base
from turnwise.recipe.loading import load_recipe
from turnwise.report import write_report
from turnwise.rollout.agents import Action, Agent, View
from turnwise.rollout.packing import pack
from turnwise.rollout.scheduler import by_task
from turnwise.runs.folder import RunFolder
from turnwise.train.estimate import Rates, estimate
from turnwise.train.setup import load_policies
from turnwise.train.stages import evaluate_model, resume, train
from turnwise.trust import outside_names
from turnwise.types import Group, StopReason, Trajectory, Turn

HERE = "tests.train.test_policies"
DUEL: dict[str, Any] = {
    "env": {"id": f"{ENVS}:Duel", "check": False},
    "rollout": {"max_tokens": 40},  # random weights end a turn late, and a turn that is cut ends the game
    "train": {"steps": 3},
}
TWO: dict[str, Any] = {
    **DUEL,
    "policies": {"white": {}, "black": {"model": "pico-7", "train": {"learning_rate": 1e-3}}},
    "seats": {"left": "white", "right": "black"},
}
RIVALS: dict[str, Any] = {
    "frozen": {
        **DUEL,
        "policies": {"mine": {}, "rival": {"model": "pico-7", "frozen": True}},
        "seats": {"left": "mine", "right": "rival"},
    },
    "pooled": {**DUEL, "seats": {"left": "policy", "right": {"pool": "policy", "every": 1, "keep": 2}}},
    "scripted": {**DUEL, "seats": {"left": "policy", "right": {"agent": f"{HERE}:Loud"}}},
}


class Loud(Agent):
    """A scripted agent that claims to be the policy, tokens and all."""

    async def act(self, view: View) -> Action:
        return Action(text="a", prompt_ids=[1], sampled_ids=[5, 6], logprobs=[-0.1, -0.2], policy="policy")


def learned_tokens(groups: Sequence[Group], policy: str) -> list[int]:
    batch = pack(groups, policy=policy)
    return batch.ids_T[batch.sampled_T].tolist()


def sampled(groups: list[Group], seat: str) -> list[int]:
    turns = [turn for one in trajectories(groups) if one.seat == seat for turn in one.turns]
    return [token for turn in turns for token in turn.sampled_ids]


# What is trained on.


@pytest.mark.parametrize("name", RIVALS)
def test_tokens_of_a_frozen_pooled_or_scripted_seat_never_enter_a_batch_or_a_gradient(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []
    prepare = Learner.prepare

    def watch(learner: Learner, groups: Sequence[Group]) -> Any:
        batch = prepare(learner, groups)
        assert batch is not None
        assert batch.seat_names == ("left",)
        seen.append(batch.ids_T[batch.sampled_T].tolist())
        return batch

    monkeypatch.setattr(Learner, "prepare", watch)
    run(tmp_path / "run", RIVALS[name])
    assert len(seen) == 3
    for step, tokens in enumerate(seen, start=1):
        groups = played(tmp_path / "run", step)
        assert tokens == sampled(groups, "left")
        assert {turn.policy for one in trajectories(groups) if one.seat == "right" for turn in one.turns}.isdisjoint(
            {"policy", "mine"}
        )
    checks = list(verify_run(tmp_path / "run"))
    assert all(check.ok for check in checks), checks


def turn(policy: str, ids: list[int], **more: Any) -> Turn:
    return Turn(prompt_ids=[3, 4], sampled_ids=ids, logprobs=[-0.5] * len(ids), policy=policy, **more)


def duet(*, reward: float = 1.0) -> Trajectory:
    """Two voices in one trajectory."""
    turns = [turn("other", [7], reward=0.25), turn("mine", [5, 6], reward=reward), turn("other", [8, 9], reward=0.5)]
    return Trajectory(id="duet", turns=turns, stop=StopReason.DONE, terminated=True)


def test_what_another_policy_said_is_context_and_its_rewards_go_to_ones_own_turns() -> None:
    batch = pack([Group(id="g", trajectories=[duet()])], policy="mine")
    assert batch.ids_T.tolist() == [3, 4, 7, 3, 4, 5, 6, 3, 4, 8, 9]
    assert batch.ids_T[batch.sampled_T].tolist() == [5, 6]
    assert batch.reward_T[batch.sampled_T].tolist() == [0.0, 1.75]
    assert float(batch.reward_T.sum()) == 1.75


def test_a_trajectory_in_which_only_others_spoke_is_left_out_even_if_it_failed() -> None:
    other = Trajectory(id="other", turns=[turn("other", [7])], stop=StopReason.ENV_ERROR)
    batch = pack([Group(id="g", trajectories=[duet(), other])], policy="mine")
    assert batch.trajectory_names == ("duet",)


def gradients(trajectory: Trajectory) -> dict[str, torch.Tensor]:
    """What one step of learning from a trajectory would do to each weight."""
    recipe = small_recipe({"algorithm": {"preset": "reinforce", "normalizer": "none"}})
    learner = Learner(TextPolicy.load("pico"), recipe.algorithm, recipe.train, name="mine")
    batch = learner.prepare([Group(id="g", trajectories=[trajectory])])
    assert batch is not None
    learner.learn(batch, step=1, allows=lambda **_: False)
    return {name: each.grad.clone() for name, each in learner.policy.trainable().items() if each.grad is not None}


def test_the_gradient_is_that_of_a_game_in_which_others_words_are_the_environments() -> None:
    heard = Turn(prompt_ids=[3, 4, 7, 3, 4], sampled_ids=[5, 6], logprobs=[-0.5, -0.5], policy="mine", reward=1.75)
    alone = Trajectory(id="g", turns=[heard], stop=StopReason.DONE, terminated=True, final_ids=[3, 4, 8, 9])
    together, expected = gradients(duet()), gradients(alone)
    assert together.keys() == expected.keys()
    assert all(torch.equal(together[name], expected[name]) for name in expected)
    assert any(bool(gradient.abs().max() > 0) for gradient in expected.values())
    mine = [replace(turn, policy="mine") for turn in duet().turns]
    other = gradients(replace(duet(), turns=mine))
    assert any(not torch.equal(other[name], expected[name]) for name in expected)  # so it would show


def test_a_row_may_compare_all_seats_of_a_task() -> None:
    groups = [
        Group(
            id=f"task/{seat}",
            task_id="task",
            trajectories=[
                Trajectory(id=f"{seat}{n}", seat=seat, turns=[turn("policy", [5], reward=pay)], stop=StopReason.DONE)
                for n, pay in enumerate(rewards)
            ],
        )
        for seat, rewards in {"left": (1.0, 1.0), "right": (0.0, 0.0)}.items()
    ]
    assert [group.id for group in by_task(groups)] == ["task"]
    advantages: dict[str, list[float]] = {}
    for compares in ("seat", "task"):
        recipe = small_recipe({"algorithm": {"preset": "dr-grpo", "filters": ["errored"], "compares": compares}})
        batch = Learner(TextPolicy.load("pico"), recipe.algorithm, recipe.train).prepare(groups)
        assert batch is not None
        assert batch.advantage_T is not None
        advantages[compares] = batch.advantage_T[batch.sampled_T].tolist()
    assert advantages == {"seat": [0.0] * 4, "task": [0.5, 0.5, -0.5, -0.5]}


# Runs.


def test_two_policies_of_different_size_play_one_game_and_only_the_trained_one_moves(tmp_path: Path) -> None:
    recipe = small_recipe(
        {
            **DUEL,
            "train": {"steps": 2},
            "policies": {"small": {}, "large": {"model": "nano", "frozen": True}},
            "seats": {"left": "small", "right": "large"},
        }
    )
    policies = load_policies(recipe)
    sizes = {name: sum(each.numel() for each in policy.model.parameters()) for name, policy in policies.items()}
    assert sizes["large"] > 4 * sizes["small"]
    train(recipe, tmp_path / "run", console=Screen())
    turns = [turn for one in trajectories(played(tmp_path / "run", 2)) for turn in one.turns]
    versions = {name: {turn.policy_version for turn in turns if turn.policy == name} for name in ("small", "large")}
    assert versions == {"small": {1}, "large": {0}}
    checkpoint = tmp_path / "run" / "checkpoints" / "step_000002"
    saved = load_file(checkpoint / "model.safetensors")  # one learns, so the layout is the plain one
    moved = [not torch.equal(saved[name], value) for name, value in policies["small"].trainable().items()]
    assert any(moved)
    assert not list(checkpoint.glob("*/model.safetensors"))
    assert "rollout/success" in rows(tmp_path / "run")[0]


def test_two_policies_that_learn_have_their_own_weights_metrics_guards_and_checkpoints(tmp_path: Path) -> None:
    console = Screen()
    run(tmp_path / "run", {**TWO, "eval": {"episodes": 4}, "log": {"rollouts": 1}}, console=console)
    folder = tmp_path / "run"
    row = rows(folder)[-1]
    assert row["white/train/learning_rate"] == 5e-3
    assert row["black/train/learning_rate"] == 1e-3
    assert "rollout/success" not in row
    assert "time/step" in row
    assert {line["policy"] for line in rows(folder, "turns")} == {"white", "black"}
    assert {"white/eval/success", "black/eval/success"} < rows(folder, "evals")[0].keys()
    newest = folder / "checkpoints" / "step_000003"
    for name in ("white", "black"):
        assert TextPolicy.load(newest / name).trainable()
        assert f"{name}  step 3/3" in console.text
    assert last_tensors(folder)["white/model.safetensors"] != last_tensors(folder)["black/model.safetensors"]
    assert all(check.ok for check in verify_run(folder))
    replayed = replay_step(folder, 3)
    assert replayed.same
    assert {number.name.split("/")[0] for number in replayed.numbers} == {"white", "black"}
    assert replay_episode(folder, 2, trajectories(played(folder, 2))[0].episode).same
    metrics = evaluate_model(small_recipe(TWO | {"eval": {"episodes": 4}}), newest)
    assert {"white/eval/success", "black/eval/success"} < metrics.keys()


def test_the_report_shows_every_policy_under_its_name(tmp_path: Path) -> None:
    run(tmp_path / "run", TWO)
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert "run · white" in page
    assert "run · black" in page


@pytest.mark.parametrize("after", [1, 2])
def test_a_run_of_two_policies_that_was_lost_ends_with_the_bits_of_one_that_was_not(tmp_path: Path, after: int) -> None:
    changes = {**TWO, "checkpoint": {"every": 1}, "eval": {"episodes": 4}}
    run(tmp_path / "whole", changes)
    with pytest.raises(LostMachineError):
        run(tmp_path / "cut", changes, console=Stopping(after=after))
    run(tmp_path / "cut")
    assert last_tensors(tmp_path / "cut") == last_tensors(tmp_path / "whole")
    for journal in ("metrics", "turns", "evals"):
        assert timeless(tmp_path / "cut", journal) == timeless(tmp_path / "whole", journal)


def opponents(folder: Path, step: int) -> list[str]:
    return [turn.policy for one in trajectories(played(folder, step)) if one.seat == "right" for turn in one.turns]


def test_a_pool_holds_the_newest_selves_and_a_resumed_run_meets_the_same_opponents(tmp_path: Path) -> None:
    changes = {**RIVALS["pooled"], "train": {"steps": 5}, "checkpoint": {"every": 2, "keep": 1}}
    run(tmp_path / "whole", changes)
    assert [set(opponents(tmp_path / "whole", step)) for step in range(1, 6)] == [
        {"policy@0"},
        {"policy@0", "policy@1"},
        {"policy@1", "policy@2"},
        {"policy@2", "policy@3"},
        {"policy@3", "policy@4"},
    ]
    with pytest.raises(LostMachineError):
        run(tmp_path / "cut", changes, console=Stopping(after=4))
    run(tmp_path / "cut")
    for step in range(1, 6):
        assert opponents(tmp_path / "cut", step) == opponents(tmp_path / "whole", step)
        assert sampled(played(tmp_path / "cut", step), "right") == sampled(played(tmp_path / "whole", step), "right")
    assert last_tensors(tmp_path / "cut") == last_tensors(tmp_path / "whole")


def test_the_selves_in_a_pool_are_what_the_policy_was(tmp_path: Path) -> None:
    run(tmp_path / "run", {**RIVALS["pooled"], "checkpoint": {"every": 1, "keep": 9}})
    folder = RunFolder.open(tmp_path / "run")
    for one in trajectories(played(tmp_path / "run", 3)):
        if one.seat != "right" or not one.turns:
            continue
        name, _, step = one.turns[0].policy.partition("@")
        assert (name, one.turns[0].policy_version) == ("policy", int(step))
        batch = pack([Group(id="g", trajectories=[one])])
        scores = TextPolicy.load(folder.checkpoints.at(int(step))).score(batch)
        assert batch.mu_T is not None
        assert float((batch.mu_T - scores.logprob_T.detach())[batch.sampled_T].abs().max()) < 1e-5


def test_a_run_of_several_policies_is_no_model_by_itself(tmp_path: Path) -> None:
    run(tmp_path / "run", {**TWO, "train": {"steps": 1}})
    with pytest.raises(ValueError, match=r"step_000001 has several policies; name the folder of one of black, white"):
        small_recipe({"model": str(tmp_path / "run")})


def test_the_estimate_counts_every_policy() -> None:
    lines = "\n".join(estimate(small_recipe(TWO), rates=Rates(learning=1e9, playing=1e9)).lines())
    assert "white: weights" in lines
    assert "black: AdamW" in lines
    frozen = "\n".join(estimate(small_recipe(RIVALS["frozen"]), rates=Rates(learning=1e9, playing=1e9)).lines())
    assert "rival: weights" in frozen
    assert "rival: AdamW" not in frozen


def test_a_run_of_several_policies_may_be_resumed_for_more_steps(tmp_path: Path) -> None:
    run(tmp_path / "run", TWO)
    resume(tmp_path / "run", console=Screen(), overrides={"train": {"steps": 4}})
    assert rows(tmp_path / "run")[-1]["step"] == 4
    with pytest.raises(ValueError, match=r"policies\.white\.frozen cannot change in the middle of a run"):
        resume(tmp_path / "run", console=Screen(), overrides={"policies": {"white": {"frozen": True}}})


def test_a_checkpoint_of_another_run_may_play_a_seat(tmp_path: Path) -> None:
    run(tmp_path / "first", {**DUEL, "train": {"steps": 1}})
    seats = {"left": {"agent": "random"}, "right": "policy"}
    run(tmp_path / "second", {**DUEL, "train": {"steps": 1}, "seats": seats})
    seats = {"left": "policy", "right": {"checkpoint": str(tmp_path / "first")}}
    run(tmp_path / "third", {**DUEL, "train": {"steps": 1}, "seats": seats})
    assert set(opponents(tmp_path / "third", 1)) == {str(tmp_path / "first")}
    assert {turn.policy for one in trajectories(played(tmp_path / "second", 1)) for turn in one.turns} == {"", "policy"}


def test_adapters_on_one_base_share_its_tensors_and_move_apart(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs turnwise[lora]")
    lora = {"model": {"name": "pico", "lora": {"rank": 2}}}
    changes = {**TWO, **lora, "policies": {"white": {}, "black": {"train": {"learning_rate": 1e-2}}}}
    white, black = (policy.model for policy in load_policies(small_recipe(changes)).values())
    others = dict(black.named_parameters())
    for name, parameter in white.named_parameters():
        assert (parameter.data_ptr() == others[name].data_ptr()) == (not parameter.requires_grad)
    run(tmp_path / "run", changes)
    tensors = last_tensors(tmp_path / "run")
    assert tensors["white/resume/adapter.safetensors"] != tensors["black/resume/adapter.safetensors"]


def test_only_what_is_equal_is_shared() -> None:
    pytest.importorskip("peft", reason="needs turnwise[lora]")
    first, second = (TextPolicy.load(name, lora=LoraSettings(rank=2)).model for name in ("pico", "pico-7"))
    share_base([first, second])
    names = [name for name, parameter in first.named_parameters() if "layers" in name and not parameter.requires_grad]
    others = dict(second.named_parameters())
    matrices = [name for name in names if dict(first.named_parameters())[name].ndim == 2]
    assert all(dict(first.named_parameters())[name].data_ptr() != others[name].data_ptr() for name in matrices)


# The plain case, and mistakes.


def test_a_plain_run_has_its_usual_folder_and_no_key_that_is_not_a_default(tmp_path: Path) -> None:
    run(tmp_path / "run", {"train": {"steps": 1}})
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["policies"], config["seats"]) == ({}, {})
    newest = tmp_path / "run" / "checkpoints" / "step_000001"
    assert {path.name for path in newest.iterdir() if path.is_dir()} == {"resume"}
    assert all("policy" not in line for line in rows(tmp_path / "run", "turns"))
    assert not [name for name in rows(tmp_path / "run")[0] if name.startswith("policy")]


def test_a_recipe_with_policies_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    run(tmp_path / "run", {**TWO, "train": {"steps": 1}})
    recipe = small_recipe({**TWO, "train": {"steps": 1}})
    assert load_recipe(tmp_path / "run" / "config.yaml") == recipe
    assert recipe.policies["black"].model.name == "pico-7"
    assert recipe.policies["black"].train.critic_learning_rate == 5e-3  # the recipe's own


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seats": {"left": "whit", "right": "black"}}, "seats.left: there is no policy 'whit'; did you mean white?"),
        ({"seats": {"left": "white", "right": "white"}}, "policies.black plays no seat; give it one in seats"),
        ({"seats": {}}, "say in seats which of white, black plays which seat"),
        ({"policies": {"white": {}, "loss": {}}}, "policies.loss needs another name"),
        ({"policies": {"white": {"modl": "pico"}, "black": {}}}, "unknown key policies.white.modl; did you mean"),
        ({"seats": {"left": {"pool": "white", "policy": "white"}, "right": "black"}}, "say one of policy, checkpoint"),
        (
            {"seats": {"left": "white", "right": {"agent": "randm"}}},
            "seats.right: agent is 'randm'; did you mean random?",
        ),
        ({"policies": {"white": {}, "black": {"algorithm": {"max_lag": 1}}}}, "black.algorithm.max_lag is not that of"),
        (
            {"policies": {"white": {}, "black": {"train": {"steps": 9}}}},
            "policies.black.train.steps is 9; all policies",
        ),
        ({"sft": {}}, "sft imitates with one policy"),
    ],
)
def test_seats_and_policies_that_do_not_fit_get_one_message(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as error:
        small_recipe({**TWO, **changes})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("seats", "message"),
    [
        ({"left": "policy", "middle": "policy"}, "seats.middle: tests.train.small_envs:Duel has no such seat"),
        ({"left": "policy"}, "seats: nobody plays right; the seats of"),
        ({"left": "policy", "right": {"agent": "os:system"}}, "os:system is not a class with act and end"),
        (
            {"left": "policy", "right": {"agent": f"{HERE}:Loud", "options": {"x": 1}}},
            "Loud: unknown option 'x'; it takes no options",
        ),
    ],
)
def test_seats_that_the_environment_has_not_are_refused_before_a_folder_is_made(
    tmp_path: Path, seats: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=r"\S") as error:
        run(tmp_path / "run", {**DUEL, "seats": seats})
    assert message in str(error.value)
    assert not (tmp_path / "run").exists()


def test_agents_and_rows_of_policies_outside_of_turnwise_need_trust() -> None:
    seats = {"left": "white", "right": {"agent": "mine:Rival"}}
    policies = {"white": {"algorithm": {"advantage": "mine:credit"}}}
    assert outside_names({"seats": seats, "policies": policies}) == ["mine:Rival", "mine:credit"]
