"""A whole run whose players are Ray actors on three machines, of which one is lost on the way."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.engine.local_servers import served_processes
from tests.train.small_runs import Screen, rows, small_recipe
from turnwise.cluster.ray_ranks import run_ranks
from turnwise.recipe.machines import ClusterChoice
from turnwise.runs.folder import RunFolder
from turnwise.runs.ledger import read_groups
from turnwise.train.stages import train

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the players of Ray in /proc")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Three machines that are processes here; the first one belongs to the driver and has no room for players."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own 15 leaves them nothing where others are busy
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


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.05)


class Interrupting(Screen):
    """Presses Ctrl-C after a step, once there was enough: in the run, which expects it, and never later."""

    def __init__(self) -> None:
        super().__init__()
        self.enough = threading.Event()

    def step(self, row: Mapping[str, Any], *, guard: str = "") -> None:
        super().step(row, guard=guard)
        if self.enough.is_set():
            signal.raise_signal(signal.SIGINT)


def test_a_run_outlives_a_player_and_a_machine(machines: Any, tmp_path: Path) -> None:
    folder, screen, errors = tmp_path / "run", Interrupting(), list[BaseException]()
    victim = machines.list_all_nodes()[-1]

    def destroy() -> None:
        try:
            wait_for(lambda: screen.text.count("is here") == 3)  # one that is not here yet cannot be lost
            wait_for(lambda: (folder / "metrics.jsonl").is_file() and bool(rows(folder)))
            os.kill(player_processes()[0], signal.SIGKILL)
            wait_for(lambda: "is lost" in screen.text)
            machines.remove_node(victim)
            wait_for(lambda: "is gone" in screen.text)
        except BaseException as error:
            errors.append(error)
        screen.enough.set()

    changes = {
        "algorithm": "grpo",
        "train": {"steps": 1000},
        "env": {"id": "tests.train.small_envs:Slow", "check": False},
        "cluster": {"players": 3, "cpus": 0.5, "at_once": 4, "start_seconds": 240},
    }
    recipe = small_recipe(changes)
    thread = threading.Thread(target=destroy, daemon=True)
    thread.start()
    summary = train(recipe, folder, console=screen)
    thread.join(timeout=60)
    assert not errors, screen.text
    assert summary["status"] == "interrupted"
    run = RunFolder.open(folder)
    for step in range(1, summary["step"] + 1):
        played = [each for group in read_groups(run.rollouts_file(step)) for each in group.trajectories]
        assert len(played) == recipe.rollout.episodes
        assert max(Counter(each.id for each in played).values()) == 1
        assert not any(each.stop.is_failure for each in played)
        assert {turn.policy_version for each in played for turn in each.turns} == {step - 1}


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


def test_ray_places_the_ranks_of_a_learner(machines: Any, tmp_path: Path) -> None:
    recipe = small_recipe({"train": {"steps": 2}, "algorithm": "grpo"})
    (tmp_path / "small.yaml").write_text(json.dumps(recipe.model_dump(mode="json")))
    arguments = ["train", str(tmp_path / "small.yaml"), "--output", str(tmp_path / "run"), "--plain", "--trust"]
    lines: list[str] = []
    code = run_ranks(arguments, choice=ClusterChoice(cpus=0.3), ranks=2, show=lines.append)
    assert code == 0, lines
    assert [row["step"] for row in rows(tmp_path / "run")] == [1, 2]
    assert RunFolder.open(tmp_path / "run").meta["ranks"] == 2
    assert sum("step 2/2" in line for line in lines) == 1  # one screen
    (tmp_path / "small.yaml").write_text("algorithm: nonsense")
    code = run_ranks(arguments, choice=ClusterChoice(cpus=0.3), ranks=2, show=lines.append)
    assert code != 0
    assert sum("nonsense" in line for line in lines) == 1  # one message
