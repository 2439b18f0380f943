"""Held-out tasks of another environment: each policy plays them alone, whatever seats it has in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.small_runs import ENVS, LostMachineError, Stopping, rows, run, small_recipe, timeless
from turnwise.train.setup import require_sound_env
from turnwise.train.stages import evaluate_model
from turnwise.trust import outside_names

PAIR: dict[str, Any] = {
    "env": {"id": f"{ENVS}:Duel", "check": False},
    "rollout": {"max_tokens": 40},
    "train": {"steps": 2},
    "policies": {"white": {}, "black": {"model": "pico-7"}},
    "seats": {"left": "white", "right": "black"},
    "eval": {"episodes": 6, "every": 1, "measures": ["kl"], "env": {"id": f"{ENVS}:Say", "check": False}},
}


def test_each_policy_plays_alone_and_the_plain_metrics_are_means(tmp_path: Path) -> None:
    run(tmp_path / "run", PAIR)
    first, *_, last = rows(tmp_path / "run", "evals")
    for row in (first, last):
        for name in ("eval/success", "eval/reward", "eval/kl"):
            mean = (row[f"white/{name}"] + row[f"black/{name}"]) / 2
            assert row[name] == pytest.approx(mean, abs=1e-9)
    assert last["white/eval/kl"] > 0 < last["black/eval/kl"]
    assert last["white/eval/episodes"] == 6
    metrics = evaluate_model(small_recipe(PAIR), tmp_path / "run" / "checkpoints" / "step_000002")
    assert metrics["white/eval/success"] == pytest.approx(last["white/eval/success"])
    assert metrics["eval/success"] == pytest.approx(last["eval/success"])


def test_a_lost_run_measures_the_same(tmp_path: Path) -> None:
    changes = {**PAIR, "checkpoint": {"every": 1}}
    run(tmp_path / "whole", changes)
    with pytest.raises(LostMachineError):
        run(tmp_path / "cut", changes, console=Stopping(after=1))
    run(tmp_path / "cut")
    assert timeless(tmp_path / "cut", "evals") == timeless(tmp_path / "whole", "evals")


def test_one_policy_may_be_tested_elsewhere_too(tmp_path: Path) -> None:
    run(
        tmp_path / "run", {"train": {"steps": 1}, "eval": {"episodes": 4, "env": {"id": "lookup/2hop", "check": False}}}
    )
    last = rows(tmp_path / "run", "evals")[-1]
    assert last["eval/episodes"] == 4
    assert not [name for name in last if name.startswith("policy/")]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("lookup/22hop", "eval.env.id: unknown environment"),
        ({"id": "lookup/2hop", "kwargs": {"hop": 2}}, "eval.env.kwargs: "),
    ],
)
def test_mistakes_in_it_are_named(env: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_recipe({"eval": {"episodes": 4, "env": env}})


def test_a_judge_of_several_policies_is_refused_there() -> None:
    with pytest.raises(ValueError, match=r"leave eval\.env or judge out"):
        small_recipe({**PAIR, "judge": {"kind": "reward"}})


def test_the_doctor_looks_at_it_and_outside_code_needs_trust() -> None:
    recipe = small_recipe({"eval": {"episodes": 4, "env": "tests.envs.broken:Missing"}})
    with pytest.raises(ValueError, match="Missing"):
        require_sound_env(recipe)
    assert outside_names({"eval": {"env": "mine:Test"}}) == ["mine:Test"]
    assert outside_names({"eval": {"env": {"id": "chat/prompts", "kwargs": {"score": "mine:score"}}}}) == ["mine:score"]
