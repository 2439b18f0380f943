"""Killed at any moment and resumed, a run ends with the bits of one that was left alone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
KILLED = -9


def run_with_kills(folder: Path, moments: list[tuple[str, int, float]], **changes: Any) -> list[int]:
    command = [sys.executable, "-m", "tests.train.killed_runs", str(folder), json.dumps(moments), json.dumps(changes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def numbers(folder: Path, journal: str) -> list[dict[str, Any]]:
    """A journal's rows without the clock."""
    rows = [json.loads(line) for line in (folder / journal).read_text().splitlines()]
    return [{name: value for name, value in row.items() if not name.startswith("time")} for row in rows]


def weights(folder: Path) -> dict[str, bytes]:
    """Every byte of the last checkpoint's tensors."""
    last = max((folder / "checkpoints").glob("step_*"))
    return {str(file.relative_to(last)): file.read_bytes() for file in sorted(last.rglob("*.safetensors"))}


def assert_equal_runs(run: Path, other: Path) -> None:
    for journal in ("metrics.jsonl", "turns.jsonl", "evals.jsonl"):
        assert numbers(run, journal) == numbers(other, journal), journal
    assert len(numbers(run, "metrics.jsonl")) == 6
    assert weights(run) == weights(other)


# Eight moments: in each of four phases early and late in the run, at odd times into the phase. `make torture` kills
# two hundred times at random.
MOMENTS = [
    [("saving", 0, 0.0), ("playing", 0, 0.02), ("learning", 1, 0.03), ("scoring", 2, 0.0)],
    [("saving", 1, 0.03), ("learning", 3, 0.01), ("playing", 0, 0.3), ("scoring", 0, 0.02)],
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run_with_kills(folder, []) == [0]
    return folder


@pytest.mark.parametrize("moments", MOMENTS, ids=("early", "late"))
def test_killed_and_resumed_a_run_ends_with_the_same_bits(
    uninterrupted: Path, tmp_path: Path, moments: list[tuple[str, int, float]]
) -> None:
    codes = run_with_kills(tmp_path / "run", moments)
    assert codes == [KILLED] * len(moments) + [0]
    assert_equal_runs(tmp_path / "run", uninterrupted)


PAIR = {
    "env": {"id": "tests.train.small_envs:Duel", "check": False},
    "model": "pico",
    "algorithm": "ppo",
    "engine": {"memory_gib": 0.05},
    "rollout": {"episodes": 8, "max_turns": 4, "max_tokens": 40},
    "policies": {"white": {}, "black": {"train": {"learning_rate": 1e-3}}},
    "seats": {"left": "white", "right": "black"},
    "exchange": {"every": 3, "policies": ["white", "black"]},  # halfway between the checkpoints of steps 2 and 4
}


def test_two_policies_that_exchange_are_killed_and_resumed_and_both_end_with_the_same_bits(tmp_path: Path) -> None:
    assert run_with_kills(tmp_path / "whole", [], **PAIR) == [0]
    moments = [
        ("learning", 1, 0.01),  # the second policy of the first step
        ("recorded", 2, 0.0),  # step 3: as the exchange begins
        ("evaluating", 0, 0.0),  # step 3, after the exchange
        ("playing", 1, 0.01),  # step 4: exchanged, but not yet saved
        ("saving", 0, 0.0),  # step 4
        ("recorded", 1, 0.002),  # step 4 or 6
    ]
    codes = run_with_kills(tmp_path / "cut", moments, **PAIR)
    assert codes == [KILLED] * len(moments) + [0]
    assert_equal_runs(tmp_path / "cut", tmp_path / "whole")
    last = weights(tmp_path / "cut")
    assert last["white/model.safetensors"] != last["black/model.safetensors"]
    for run in ("whole", "cut"):
        exchanged = [row["step"] for row in numbers(tmp_path / run, "events.jsonl") if row["kind"] == "exchanged"]
        assert exchanged == [3, 6], run


def test_a_resumed_run_goes_on_with_its_history_of_rewards_and_its_kl_coefficient(tmp_path: Path) -> None:
    reward = [{"kind": "running", "clip": 0.8}, {"kind": "token-kl", "coef": 0.05, "target": 0.1}]
    algorithm = {"preset": "ppo-max", "reward": reward, "critic": {"warmup": 2}}
    changes = {"model": "pico", "engine": {"memory_gib": 0.05}, "algorithm": algorithm}
    assert run_with_kills(tmp_path / "whole", [], **changes) == [0]
    moments = [("playing", 3, 0.05), ("learning", 2, 0.02)]  # after the checkpoints of steps 2 and 4
    assert run_with_kills(tmp_path / "cut", moments, **changes) == [KILLED, KILLED, 0]
    assert_equal_runs(tmp_path / "cut", tmp_path / "whole")
    rows = numbers(tmp_path / "whole", "metrics.jsonl")
    assert len({row["train/reward_mean"] for row in rows}) > 2
    assert len({row["train/kl_coef"] for row in rows}) == 6


def test_a_resumed_run_stays_near_the_reference_that_it_began_with(tmp_path: Path) -> None:
    rollout = {"episodes": 16, "max_turns": 4, "max_tokens": 12}
    changes = {
        "algorithm": "grpo",
        "train": {"steps": 6, "learning_rate": 1e-3, "reference_every": 4},
        "rollout": rollout,
    }
    assert run_with_kills(tmp_path / "whole", [], **changes) == [0]
    moments = [("playing", 3, 0.05), ("learning", 2, 0.02)]  # after the checkpoints of steps 2 and 4
    assert run_with_kills(tmp_path / "cut", moments, **changes) == [KILLED, KILLED, 0]
    assert_equal_runs(tmp_path / "cut", tmp_path / "whole")
    assert numbers(tmp_path / "whole", "metrics.jsonl")[3]["loss/reference_kl"] > 0.001


def test_iterations_of_sampling_judging_and_learning_resume_to_the_bit(tmp_path: Path) -> None:
    changes = {
        "algorithm": "iterative-dpo",
        "judge": {"kind": "reward", "scale": 4.0},
        "rollout": {"episodes": 16, "max_turns": 4, "max_tokens": 12},
    }
    assert run_with_kills(tmp_path / "whole", [], **changes) == [0]
    moments = [("playing", 3, 0.05), ("learning", 2, 0.02)]
    assert run_with_kills(tmp_path / "cut", moments, **changes) == [KILLED, KILLED, 0]
    assert_equal_runs(tmp_path / "cut", tmp_path / "whole")
    assert "eval/win_rate" in numbers(tmp_path / "whole", "evals.jsonl")[-1]
