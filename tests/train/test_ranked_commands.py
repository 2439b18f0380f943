"""Commands on several real ranks: one folder, one screen, one message; whoever dies, the run goes on to the bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.kills import differences
from tests.train.small_runs import rows

Codes = dict[str, list[int]]
"""How the ranks of each command ended."""


def perform(folder: Path, *scenarios: str) -> dict[str, Codes]:
    """Play scenarios, each in its own folder; importing torch is the longest part, so all in one process."""
    command = [sys.executable, "-m", "tests.train.ranked_commands", str(folder), *scenarios]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1200)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Codes]]:
    """The short scenarios."""
    folder = tmp_path_factory.mktemp("ranked")
    return folder, perform(folder, "interrupted", "failing", "simple", "evaluated", "sharded")


def said(folder: Path, name: str) -> str:
    return (folder / f"{name}.log").read_text()


@pytest.mark.parametrize("scenario", ["killed-replicas", "killed-sharded"])
def test_a_killed_rank_ends_the_run_and_resuming_it_gives_the_bits_of_a_run_that_nobody_killed(
    tmp_path: Path, scenario: str
) -> None:
    codes = perform(tmp_path, scenario)[scenario]
    folder = tmp_path / scenario
    assert codes["killed 1"] == [1, -9]
    assert codes["killed 0"] == [-9, 1]
    assert [codes[name] for name in ("twin", "run", "on 1", "on 3")] == [[0, 0], [0, 0], [0], [0, 0, 0]]
    assert differences(folder / "run", folder / "twin") == []
    for victim in (0, 1):
        assert said(folder, "run").count(f"rank {victim} has ended without a message") == 1
    assert said(folder, "run").count(f"continue with: torchrun … -m turnwise resume {folder / 'run'}") == 2
    assert "Traceback" not in said(folder, "run")
    for size in (1, 3):
        assert [row["step"] for row in rows(folder / f"on-{size}")] == [1, 2, 3, 4, 5]
        assert f"ranks was 2, now {size}: the last bits may differ" in said(folder, f"on-{size}")
    assert json.loads((folder / "run" / "meta.json").read_text())["ranks"] == 2


def test_sharded_runs_adapt_renew_restore_and_can_be_read_and_resumed_otherwise(
    played: tuple[Path, dict[str, Codes]],
) -> None:
    folder, codes = played[0] / "sharded", played[1]["sharded"]
    assert codes.pop("replay") in ([0], [1])  # one rank learns it again: the last bits may differ
    assert {name: set(ended) for name, ended in codes.items()} == {name: {0} for name in codes}, codes
    assert "no defect" in said(folder, "verify")
    assert "learnt again from checkpoint 1" in said(folder, "replay")
    assert "restoring the state of step 0" in said(folder, "restored")
    assert [row["step"] for row in rows(folder / "replicas")] == [1, 2, 3, 4]
    names = {path.name for path in (folder / "lora/checkpoints/step_000002").glob("*.safetensors")}
    assert names == {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}


def test_ranks_that_are_told_to_end_finish_the_step_and_save(played: tuple[Path, dict[str, Codes]]) -> None:
    folder, codes = played[0] / "interrupted", played[1]["interrupted"]
    assert codes == {"run": [130, 130]}
    last = rows(folder / "run")[-1]["step"]
    assert (folder / f"run/checkpoints/step_{last:06d}/manifest.json").is_file()
    assert said(folder, "run").count(f"Interrupted: step {last} is finished and saved.") == 1


def test_what_fails_on_any_rank_is_said_once_and_ends_all(played: tuple[Path, dict[str, Codes]]) -> None:
    folder, codes = played[0] / "failing", played[1]["failing"]
    assert codes.pop("error") == [1, 1]
    assert all(ended == [2, 2] for ended in codes.values()), codes
    assert said(folder, "recipe").count("unknown algorithm 'nonsense'") == 1
    assert said(folder, "usage").count("No such option") == 1
    assert said(folder, "mistake") == "turnwise: rank 1: this machine has no model; nothing was written\n"
    assert said(folder, "error").count("RuntimeError: out of memory") == 1
    assert said(folder, "numbers").count("turnwise: ") == 1
    assert not (folder / "mistake").exists()


def test_what_needs_no_ranks_is_done_once(played: tuple[Path, dict[str, Codes]]) -> None:
    folder, codes = played[0] / "simple", played[1]["simple"]
    assert codes == {"dry": [0, 0], "help": [0, 0], "list": [0, 0]}
    assert said(folder, "dry").count("seed: 0") == 1
    assert said(folder, "help").count("Train an agent") == 1
    assert said(folder, "list").count("which to take:") == 1


def test_ranks_share_an_evaluation_and_print_one_result(played: tuple[Path, dict[str, Codes]]) -> None:
    folder, codes = played[0] / "evaluated", played[1]["evaluated"]
    assert codes == {"1": [0], "2": [0, 0]}
    alone, shared = (json.loads(said(folder, name)) for name in ("1", "2"))
    assert shared["eval/episodes"] == alone["eval/episodes"] == 8
    assert shared["eval/success"] == pytest.approx(alone["eval/success"], abs=0.3)
