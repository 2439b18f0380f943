"""Whole runs against served engines: equal to the run in one process, and alive when servers are not."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.engine.local_servers import served_processes
from tests.train.small_runs import (
    ENVS,
    Screen,
    last_tensors,
    played,
    rows,
    run,
    small_recipe,
    timeless,
    trajectories,
)
from turnwise.runs.checkpoints import find_fault
from turnwise.runs.folder import RunFolder
from turnwise.train.stages import resume, train
from turnwise.types import Trajectory

NANO: dict[str, Any] = {
    "model": "nano",
    "env": {"id": "game/guess-number-easy", "check": False},
    "rollout": {"episodes": 8, "max_turns": 4, "max_tokens": 24},
    "engine": {"memory_gib": 0.5},
    "train": {"steps": 3, "learning_rate": 3e-4},
    "eval": {"episodes": 4},
}

PICO: dict[str, Any] = {
    "env": {"id": f"{ENVS}:Say", "kwargs": {"turns": 3}, "check": False},
    "rollout": {"episodes": 32, "max_turns": 4, "max_tokens": 8},
    "train": {"steps": 3},
    "checkpoint": {"every": 1, "keep": 9},
}


class Killing(Screen):
    """Kills a server while the next step is played."""

    def __init__(self, process: subprocess.Popen[str], *, after: int) -> None:
        super().__init__()
        self.process, self.after = process, after

    def step(self, row: Mapping[str, Any], *, guard: str = "") -> None:
        super().step(row, guard=guard)
        if row["step"] == self.after:
            threading.Timer(0.02, self.process.kill).start()


def tokens(each: Trajectory) -> list[tuple[list[int], list[float], int | None]]:
    return [(list(turn.sampled_ids), list(turn.logprobs or ()), turn.policy_version) for turn in each.turns]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def nano(shared: Path) -> Iterator[str]:
    with served_processes("nano", shared) as [(_, url)]:
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


def test_a_server_killed_in_the_middle_of_a_step_costs_nothing_while_another_lives(tmp_path: Path) -> None:
    with served_processes("pico", tmp_path, count=2) as [(doomed, one), (_, two)]:
        screen = Killing(doomed, after=1)
        engine = {"kind": "turnwise", "urls": [one, two]}
        assert run(tmp_path / "run", {**PICO, "engine": engine}, console=screen)["status"] == "finished"
    for row in rows(tmp_path / "run"):
        episodes = trajectories(played(tmp_path / "run", row["step"]))
        assert len({each.id for each in episodes}) == len(episodes) == 32
        assert row["rollout/faults"] == 0
        assert {turn.policy_version for each in episodes for turn in each.turns} == {row["step"] - 1}
    assert f"engine server {one} is left out" in screen.text


def test_a_run_that_lost_its_only_server_ends_with_one_message_and_goes_on_with_another(tmp_path: Path) -> None:
    assert run(tmp_path / "alone", PICO)["status"] == "finished"
    with served_processes("pico", tmp_path, count=2) as [(doomed, url), (_, other)]:
        recipe = small_recipe({**PICO, "engine": {"kind": "turnwise", "urls": [url]}})
        with pytest.raises(ValueError, match=rf"^no engine server can be used: {url}: [^\n]*$"):
            train(recipe, tmp_path / "run", console=Killing(doomed, after=2))
        newest = RunFolder.open(tmp_path / "run").checkpoints.latest()
        assert newest is not None
        assert newest.name == "step_000002"
        assert not find_fault(newest)
        changes = {"engine": {"urls": [other]}}
        assert resume(tmp_path / "run", console=Screen(), overrides=changes)["status"] == "finished"
    assert timeless(tmp_path / "run") == timeless(tmp_path / "alone")
    assert last_tensors(tmp_path / "run") == last_tensors(tmp_path / "alone")


def test_nobody_at_the_address_is_one_message_and_leaves_no_folder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    recipe = small_recipe({"engine": {"kind": "turnwise", "urls": [url]}})
    with pytest.raises(ValueError, match=f"no engine server can be used: {url}: connection refused"):
        train(recipe, tmp_path / "run", console=Screen())
    assert not (tmp_path / "run").exists()
