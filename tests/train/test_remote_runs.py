"""Whole runs against served engines: equal to the run in one process, and alive when servers are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.local_servers import served_process
from tests.train.small_runs import last_tensors, played, rows, run, timeless, trajectories
from turnwise.types import Trajectory

NANO: dict[str, Any] = {
    "model": "nano",
    "env": {"id": "game/guess-number-easy", "check": False},
    "rollout": {"episodes": 8, "max_turns": 4, "max_tokens": 24},
    "engine": {"memory_gib": 0.5},
    "train": {"steps": 3, "learning_rate": 3e-4},
    "eval": {"episodes": 4},
}


def tokens(each: Trajectory) -> list[tuple[list[int], list[float], int | None]]:
    return [(list(turn.sampled_ids), list(turn.logprobs or ()), turn.policy_version) for turn in each.turns]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def nano(shared: Path) -> Iterator[str]:
    with served_process("nano", shared) as (_, url):
        yield url


def test_a_run_against_a_served_engine_equals_the_run_in_one_process_token_for_token(shared: Path, nano: str) -> None:
    assert run(shared / "alone", NANO)["status"] == "finished"
    engine = {"kind": "turnwise", "urls": [nano]}
    assert run(shared / "remote", {**NANO, "engine": engine})["status"] == "finished"
    for step in (1, 2, 3):
        here, there = trajectories(played(shared / "alone", step)), trajectories(played(shared / "remote", step))
        assert [tokens(each) for each in here] == [tokens(each) for each in there]
        assert any(len(each.turns) > 1 for each in here)
        assert {turn.policy_version for each in there for turn in each.turns} == {step - 1}
    assert timeless(shared / "alone") == timeless(shared / "remote")
    assert [row["eval/success"] for row in rows(shared / "alone", "evals")] == [
        row["eval/success"] for row in rows(shared / "remote", "evals")
    ]
    assert last_tensors(shared / "alone") == last_tensors(shared / "remote")
    assert not (shared / "remote" / "published").exists()
