"""Policies that learn one after the other: the others play as they are, also in a run that was lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.small_runs import ENVS, LostMachineError, Stopping, last_tensors, rows, run, small_recipe, timeless
from turnwise.audit.replay import replay_step
from turnwise.audit.verify import verify_run
from turnwise.policy.text import TextPolicy
from turnwise.recipe.seating import learns_at

DUO: dict[str, Any] = {
    "env": {"id": f"{ENVS}:Duel", "check": False},
    "algorithm": "ppo",
    "rollout": {"max_tokens": 40},
    "train": {"steps": 4},
    "checkpoint": {"every": 1, "keep": 9},
    "policies": {"white": {}, "black": {"train": {"learning_rate": 1e-3}}},
    "seats": {"left": "white", "right": "black"},
    "in_turn": {"every": 2, "policies": ["white", "black"]},
}


def is_unchanged(folder: Path, policy: str, first: int, last: int) -> bool:
    before, after = (
        TextPolicy.load(folder / "checkpoints" / f"step_{step:06d}" / policy).trainable() for step in (first, last)
    )
    return all(before[name].equal(after[name]) for name in before)


def test_each_learns_in_its_steps_and_stays_as_it_is_in_the_others(tmp_path: Path) -> None:
    run(tmp_path / "run", DUO)
    assert not is_unchanged(tmp_path / "run", "white", 0, 2)
    assert is_unchanged(tmp_path / "run", "black", 0, 2)
    assert is_unchanged(tmp_path / "run", "white", 2, 4)
    assert not is_unchanged(tmp_path / "run", "black", 2, 4)
    learned = [[name in row for name in ("white/loss/policy", "black/loss/policy")] for row in metrics(tmp_path)]
    assert learned == [[True, False], [True, False], [False, True], [False, True]]
    assert all("white/rollout/reward" in row and "black/rollout/reward" in row for row in metrics(tmp_path))
    checks = list(verify_run(tmp_path / "run"))
    assert all(check.ok for check in checks), checks
    assert replay_step(tmp_path / "run", 4).same


def test_the_first_steps_are_those_of_a_run_in_which_the_other_is_frozen(tmp_path: Path) -> None:
    run(tmp_path / "run", DUO)
    frozen = {"policies": {"white": {}, "black": {"frozen": True}}, "in_turn": None, "train": {"steps": 2}}
    run(tmp_path / "frozen", {**DUO, **frozen})
    alone = rows(tmp_path / "frozen", "metrics")
    for mine, other in zip(metrics(tmp_path)[:2], alone, strict=True):
        assert mine["white/loss/policy"] == other["loss/policy"]
        assert mine["white/rollout/reward"] == other["rollout/reward"]


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_run_that_was_lost_ends_with_the_bits_of_one_that_was_not(tmp_path: Path, after: int) -> None:
    run(tmp_path / "run", DUO)
    with pytest.raises(LostMachineError):
        run(tmp_path / "cut", DUO, console=Stopping(after=after))
    run(tmp_path / "cut")
    assert last_tensors(tmp_path / "cut") == last_tensors(tmp_path / "run")
    assert timeless(tmp_path / "cut", "metrics") == timeless(tmp_path / "run", "metrics")


def test_after_the_last_comes_the_first_again_and_others_always_learn() -> None:
    recipe = small_recipe(DUO)
    assert [learns_at(recipe, "white", step) for step in range(1, 7)] == [True, True, False, False, True, True]
    assert all(learns_at(recipe, "green", step) for step in range(1, 7))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"in_turn": {"policies": ["white", "blak"]}}, "in_turn.policies: 'blak' is not a policy that learns"),
        ({"in_turn": {"every": 2}}, "in_turn.policies names two or more policies"),
        ({"in_turn": {"policies": ["white", "white"]}}, "in_turn.policies names two or more policies"),
        ({"policies": {"white": {}, "black": {"frozen": True}}}, "'black' is not a policy that learns"),
    ],
)
def test_turns_that_cannot_be_get_one_message(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as error:
        small_recipe({**DUO, **changes})
    assert message in str(error.value)


def metrics(folder: Path) -> list[dict[str, Any]]:
    return rows(folder / "run", "metrics")
