"""Runs that go wrong half-way: seen within three steps, and with a guard that acts they end as well as healthy ones."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tests.train.small_runs import ENVS, rows, run
from turnwise.batch import TokenBatch
from turnwise.learn import learner
from turnwise.learn.learner import Learner
from turnwise.learn.reporting import Report
from turnwise.policy.text import TextPolicy
from turnwise.train import setup

STEPS, WRONG = 30, 20
"""How long a run is, and the first step in which something is wrong. By then the agent succeeds nearly always."""
SEEN_WITHIN = 3
SIGNALS = {"gradient of NaN": "non-finite", "hundredfold rate": "kl", "flipped reward": "reward-shift"}
"""Among the first to speak up. The second update of a step shows what the first did at a hundredfold rate."""
Injection = Callable[[pytest.MonkeyPatch], dict[str, Any]]
"""Makes a run go wrong; returns what the recipe says about it."""


def recipe(**changes: Any) -> dict[str, Any]:
    """Pico learns from success 0.04 to 0.96 in these thirty steps."""
    return {
        "env": {"id": f"{ENVS}:Flips", "check": False},
        "rollout": {"episodes": 64},
        # A short memory for the size of gradients: what goes wrong must do its damage within ten steps.
        "train": {"steps": STEPS, "learning_rate": 5e-3, "betas": [0.9, 0.95]},
        "eval": {"episodes": 128},
        "checkpoint": {"every": 2},
        **changes,
    }


def gradient_of_nan(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """In three steps from step 20 on a gradient holds NaN."""
    load, learn, now = setup.load_policy, Learner.learn, [0]

    def learn_and_tell(learner: Learner, batch: TokenBatch, step: int, *others: Any) -> Report:
        now[0] = step
        return learn(learner, batch, step, *others)

    def load_and_hook(*arguments: Any, **options: Any) -> TextPolicy:
        policy = load(*arguments, **options)
        next(iter(policy.trainable().values())).register_hook(spoil)
        return policy

    def spoil(gradient: Tensor) -> Tensor:
        return gradient * math.nan if WRONG <= now[0] < WRONG + 3 else gradient

    monkeypatch.setattr(Learner, "learn", learn_and_tell)
    monkeypatch.setattr(setup, "load_policy", load_and_hook)
    return {}


def hundredfold_rate(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """From step 20 on the learning rate is a hundred times what it should be."""
    factor = learner.learning_rate_factor

    def wrong(step: int, **settings: Any) -> float:
        return factor(step, **settings) * (100 if step >= WRONG else 1)

    monkeypatch.setattr(learner, "learning_rate_factor", wrong)
    return {}


def flipped_reward(_: pytest.MonkeyPatch) -> dict[str, Any]:
    """From step 20 on right answers are punished."""
    return {"env": {"id": f"{ENVS}:Flips", "kwargs": {"after": (WRONG - 1) * 64}, "check": False}}


INJECTIONS: dict[str, Injection] = {
    "gradient of NaN": gradient_of_nan,
    "hundredfold rate": hundredfold_rate,
    "flipped reward": flipped_reward,
}


@pytest.fixture(scope="module")
def healthy_success(tmp_path_factory: pytest.TempPathFactory) -> float:
    folder = tmp_path_factory.mktemp("healthy") / "run"
    run(folder, recipe(guard="act"))
    assert [event["kind"] for event in rows(folder, "events")] == ["finished"]  # and no false alarm
    return rows(folder, "evals")[-1]["eval/success"]


@pytest.mark.parametrize("name", INJECTIONS)
def test_a_guard_that_acts_sees_it_within_three_steps_and_saves_the_run(
    name: str, healthy_success: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "run", recipe(guard="act", **INJECTIONS[name](monkeypatch)))
    incidents = [event for event in rows(tmp_path / "run", "events") if event["kind"] == "guard"]
    success = rows(tmp_path / "run", "evals")[-1]["eval/success"]
    assert WRONG <= incidents[0]["step"] < WRONG + SEEN_WITHIN
    assert SIGNALS[name] in {each["signal"] for each in incidents if each["step"] == incidents[0]["step"]}
    assert "restore" in {incident["action"] for incident in incidents}
    assert healthy_success > 0.9
    assert success >= 0.9 * healthy_success


@pytest.mark.parametrize("name", ["hundredfold rate", "flipped reward"])
def test_without_a_guard_the_agent_unlearns_everything(
    name: str, healthy_success: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "run", recipe(guard="off", **INJECTIONS[name](monkeypatch)))
    assert rows(tmp_path / "run", "evals")[-1]["eval/success"] < 0.5 * healthy_success


def test_without_a_guard_a_gradient_of_nan_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="nan"):
        run(tmp_path / "run", recipe(guard="off", **gradient_of_nan(monkeypatch)))
    assert WRONG <= rows(tmp_path / "run")[-1]["step"] < STEPS


def test_a_rate_that_kills_at_once_is_seen_by_the_second_step_and_the_run_is_saved(tmp_path: Path) -> None:
    changes = {"train": {"steps": 16, "learning_rate": 0.5}, "guard": {"mode": "act", "shrink": 0.01}}
    run(tmp_path / "run", recipe(**changes))
    incidents = [event for event in rows(tmp_path / "run", "events") if event["kind"] == "guard"]
    assert incidents[0]["step"] <= 2
    assert incidents[0]["signal"] == "kl"
    assert incidents[0]["action"] == "restore"
    before, after = (row["eval/success"] for row in rows(tmp_path / "run", "evals"))
    assert after > before + 0.3
