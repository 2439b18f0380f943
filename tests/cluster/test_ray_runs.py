"""A whole run whose players are Ray actors on three machines, of which one is lost on the way."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.engine.local_servers import served_processes
from tests.train.small_runs import Screen, rows, small_recipe
from turnwise.runs.folder import RunFolder
from turnwise.runs.ledger import read_groups
from turnwise.train.stages import train

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the players of Ray in /proc")
STEPS = 4


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Three machines that are processes here; the first one belongs to the driver and has no room for players."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": 0})
    cluster.add_node(**node)
    cluster.add_node(**node)
    cluster.wait_for_nodes(timeout=120)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def player_processes() -> list[int]:
    """Ray names its workers after what they do."""
    found: list[int] = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            found += [int(file.parent.name)] if file.read_bytes().startswith(b"ray::PlayerActor") else []
    return found


def wait_for(folder: Path, step: int) -> None:
    """Wait until a step is on record."""
    journal, until = folder / "metrics.jsonl", time.monotonic() + 240
    while time.monotonic() < until:
        if journal.is_file() and len(journal.read_text().splitlines()) >= step:
            return
        time.sleep(0.05)
    raise TimeoutError(f"step {step} never came")


def test_a_run_outlives_a_player_and_a_machine(machines: Any, tmp_path: Path) -> None:
    folder, errors = tmp_path / "run", list[BaseException]()
    victim = machines.list_all_nodes()[-1]

    def destroy() -> None:
        try:
            wait_for(folder, 1)
            os.kill(player_processes()[0], signal.SIGKILL)
            wait_for(folder, 2)
            machines.remove_node(victim)
        except BaseException as error:
            errors.append(error)

    changes = {
        "algorithm": "grpo",
        "train": {"steps": STEPS},
        "env": {"id": "tests.train.small_envs:Say", "check": False},
        "cluster": {"players": 3, "cpus": 0.5, "at_once": 4, "start_seconds": 240},
    }
    recipe, screen = small_recipe(changes), Screen()
    thread = threading.Thread(target=destroy)
    thread.start()
    summary = train(recipe, folder, console=screen)
    thread.join(timeout=60)
    assert not errors
    assert summary["status"] == "finished"
    run = RunFolder.open(folder)
    for step in range(1, STEPS + 1):
        played = [each for group in read_groups(run.rollouts_file(step)) for each in group.trajectories]
        assert len(played) == recipe.rollout.episodes
        assert max(Counter(each.id for each in played).values()) == 1
        assert not any(each.stop.is_failure for each in played)
        assert {turn.policy_version for each in played for turn in each.turns} == {step - 1}
    assert "is lost" in screen.text
    assert "is gone" in screen.text


def test_players_sample_on_servers_that_the_learner_publishes_to(machines: Any, tmp_path: Path) -> None:
    with served_processes("pico", tmp_path) as [(_, url)]:
        changes = {
            "train": {"steps": 2},
            "algorithm": {"preset": "rebn", "minibatches": 1, "epochs": 1},
            "engine": {"kind": "turnwise", "urls": [url]},
            "cluster": {"players": 2, "cpus": 0.4, "at_once": 4, "start_seconds": 240},
        }
        screen = Screen()
        assert train(small_recipe(changes), tmp_path / "run", console=screen)["status"] == "finished"
    run = RunFolder.open(tmp_path / "run")
    for step in (1, 2):
        played = [each for group in read_groups(run.rollouts_file(step)) for each in group.trajectories]
        assert len(played) == 16
        assert {turn.policy_version for each in played for turn in each.turns} == {step - 1}
    # With one update per step the learner scores what servers sampled from the same weights.
    gaps = [row["loss/sampler_kl"] for row in rows(tmp_path / "run") if "loss/sampler_kl" in row]
    assert all(gap < 1e-4 for gap in gaps)
