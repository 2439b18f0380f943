"""Two policies that swap their weights: exactly, also in a run that was lost, and with adapters on one base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.small_runs import (
    ENVS,
    LostMachineError,
    Stopping,
    last_tensors,
    rows,
    run,
    small_recipe,
    timeless,
)
from turnwise.audit.replay import replay_step
from turnwise.audit.verify import verify_run
from turnwise.learn.learner import Learner
from turnwise.policy.text import TextPolicy
from turnwise.policy.text_lora import LoraSettings
from turnwise.train.exchange import swap_learners
from turnwise.types import Group, StopReason, Trajectory, Turn

DUO: dict[str, Any] = {
    "env": {"id": f"{ENVS}:Duel", "check": False},
    "algorithm": "ppo",
    "rollout": {"max_tokens": 40},
    "train": {"steps": 4},
    "checkpoint": {"every": 1, "keep": 9},
    "policies": {"white": {}, "black": {"train": {"learning_rate": 1e-3}}},
    "seats": {"left": "white", "right": "black"},
    "exchange": {"every": 2, "policies": ["white", "black"]},
}


def learner(name: str, model: str, *, lora: bool = False, dtype: str = "fp32", reward: float = 1.0) -> Learner:
    """A learner that has taken one step."""
    recipe = small_recipe({"algorithm": "ppo", "model": {"name": "pico", "dtype": dtype}})
    settings = LoraSettings(rank=2) if lora else None
    made = Learner(TextPolicy.load(model, lora=settings, dtype=dtype), recipe.algorithm, recipe.train, name=name)  # type: ignore[arg-type]
    turns = [Turn(prompt_ids=[1, 5], sampled_ids=[6, 7, 3], logprobs=[-1.0] * 3, policy=name, reward=reward)]
    turns += [Turn(prompt_ids=[5], sampled_ids=[8, 3], logprobs=[-1.0] * 2, policy=name)]
    played = Trajectory(id=name, turns=turns, stop=StopReason.DONE, terminated=True)
    batch = made.prepare([Group(id="g", trajectories=[played])])
    assert batch is not None
    made.learn(batch, step=1)
    return made


def state(made: Learner) -> dict[str, torch.Tensor]:
    """All that moves in an exchange, by name."""
    assert made.critic is not None
    assert made.critic_optimizer is not None
    found = {**made.policy.trainable(), **made.optimizer.tensors()}
    found |= {f"critic.{name}": each for name, each in made.critic.trainable().items()}
    found |= {f"critic.{name}": each for name, each in made.critic_optimizer.tensors().items()}
    return {name: each.detach().clone() for name, each in found.items()}


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("kind", ["whole", "bf16", "lora"])
def test_an_exchange_moves_every_bit_of_weights_critics_and_moments_and_two_of_them_none(kind: str) -> None:
    if kind == "lora":
        pytest.importorskip("peft", reason="needs turnwise[lora]")
    other = "pico" if kind == "lora" else "pico-7"
    form = {"lora": kind == "lora", "dtype": "bf16" if kind == "bf16" else "fp32"}
    first, second = learner("a", "pico", **form), learner("b", other, **form, reward=-1.0)
    before = state(first), state(second)
    assert not equal(*before)
    places = [each.data_ptr() for each in first.policy.trainable().values()]
    swap_learners(first, second)
    assert equal(state(first), before[1])
    assert equal(state(second), before[0])
    assert places == [each.data_ptr() for each in first.policy.trainable().values()]  # an engine may share them
    swap_learners(first, second)
    assert equal(state(first), before[0])
    assert equal(state(second), before[1])


def test_a_reset_forgets_moments_and_keeps_what_half_precision_lacks() -> None:
    made = learner("a", "pico", dtype="bf16")
    before = made.optimizer.tensors()
    made.optimizer.forget()
    after = made.optimizer.tensors()
    assert {name.partition(".")[0] for name in before} == {"residual", "exp_avg", "exp_avg_sq", "step"}
    assert {name.partition(".")[0] for name in after} == {"residual"}
    assert all(torch.equal(after[name], before[name]) for name in after)


def weights(folder: Path, step: int, policy: str) -> dict[str, torch.Tensor]:
    return dict(TextPolicy.load(folder / "checkpoints" / f"step_{step:06d}" / policy).trainable())


def test_a_run_exchanges_when_it_is_due_and_says_so(tmp_path: Path) -> None:
    run(tmp_path / "swaps", DUO)
    run(tmp_path / "keeps", {**DUO, "exchange": None})
    for name, other in (("white", "black"), ("black", "white")):
        assert equal(weights(tmp_path / "swaps", 1, name), weights(tmp_path / "keeps", 1, name))
        assert equal(weights(tmp_path / "swaps", 2, name), weights(tmp_path / "keeps", 2, other))
    assert not equal(weights(tmp_path / "keeps", 2, "white"), weights(tmp_path / "keeps", 2, "black"))
    said = [event for event in rows(tmp_path / "swaps", "events") if event["kind"] == "exchanged"]
    assert [event["step"] for event in said] == [2, 4]
    assert said[0]["policies"] == ["white", "black"]
    checks = list(verify_run(tmp_path / "swaps"))
    assert all(check.ok for check in checks), checks
    assert replay_step(tmp_path / "swaps", 3).same


@pytest.mark.parametrize(("after", "optimizer"), [(2, "keep"), (3, "keep"), (2, "reset")])
def test_a_run_that_was_lost_around_an_exchange_ends_with_the_bits_of_one_that_was_not(
    tmp_path: Path, after: int, optimizer: str
) -> None:
    changes = {**DUO, "exchange": {**DUO["exchange"], "optimizer": optimizer}}
    run(tmp_path / "whole", changes)
    with pytest.raises(LostMachineError):
        run(tmp_path / "cut", changes, console=Stopping(after=after))
    run(tmp_path / "cut")
    assert last_tensors(tmp_path / "cut") == last_tensors(tmp_path / "whole")
    for journal in ("metrics", "turns"):
        assert timeless(tmp_path / "cut", journal) == timeless(tmp_path / "whole", journal)


def test_adapters_on_one_base_exchange_and_leave_the_base_alone(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs turnwise[lora]")
    lora = {"model": {"name": "pico", "lora": {"rank": 2}}, "train": {"steps": 2}}
    run(tmp_path / "swaps", {**DUO, **lora})
    run(tmp_path / "keeps", {**DUO, **lora, "exchange": None})
    swapped, kept = last_tensors(tmp_path / "swaps"), last_tensors(tmp_path / "keeps")
    for file in ("adapter", "optimizer", "critic", "critic_optimizer"):
        name = f"resume/{file}.safetensors"
        assert swapped[f"white/{name}"] == kept[f"black/{name}"]
        assert swapped[f"black/{name}"] == kept[f"white/{name}"] != kept[f"black/{name}"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exchange": {"policies": ["white", "blak"]}}, "exchange.policies: 'blak' is not a policy that learns"),
        ({"exchange": {"every": 2}}, "exchange.policies names two policies that learn"),
        ({"exchange": {"policies": ["white", "white"]}}, "exchange.policies names white twice"),
        ({"policies": {"white": {}, "black": {"model": {"dtype": "bf16"}}}}, "white and black differ in model.dtype"),
        ({"policies": {"white": {}, "black": {"frozen": True}}}, "'black' is not a policy that learns"),
        ({"algorithm": {"preset": "ppo", "max_lag": 1}}, "set algorithm.max_lag=0"),
        ({"algorithm": {"preset": "ppo", "extrapolate": "parameters"}}, "set algorithm.extrapolate=none"),
    ],
)
def test_an_exchange_that_cannot_be_gets_one_message(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as error:
        small_recipe({**DUO, **changes})
    assert message in str(error.value)


def test_models_of_different_shapes_are_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="have weights of different shapes"):
        run(tmp_path / "run", {**DUO, "policies": {"white": {}, "black": {"model": "nano"}}})
    assert not (tmp_path / "run").exists()


def test_a_replay_says_where_an_exchange_ends_it(tmp_path: Path) -> None:
    run(tmp_path / "run", {**DUO, "checkpoint": {"every": 9, "keep": 1}})
    with pytest.raises(ValueError, match=r"after step 2 policies swapped their weights"):
        replay_step(tmp_path / "run", 3)
    assert replay_step(tmp_path / "run", 2).same
