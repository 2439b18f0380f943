"""Loggers show the numbers of the run folder elsewhere, and say which extra they need."""

import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from turnwise.recipe.schema import Log
from turnwise.runs import RunFolder
from turnwise.runs.loggers import Loggers

META = {"started": "2025-01-02T03:04:05+00:00"}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    config = {"name": "geo", "stage": "reinforcement", "algorithm": {"name": "ppo"}}
    return RunFolder.create(tmp_path / "geo", config, META)


def play(folder: RunFolder, loggers: Loggers, steps: range, success: float) -> None:
    for step in steps:
        row = {
            "step": step,
            "rollout/success": success,
            "loss/value": math.nan,
            "text": "words",
            "flag": True,
            "no": None,
        }
        loggers.row(row)
        folder.metrics.append(row)


def test_without_loggers_rows_go_nowhere(folder: RunFolder):
    loggers = Loggers.of(Log(), folder)
    loggers.row({"step": 1, "rollout/success": 0.5})
    loggers.close()
    assert sum(path.stat().st_size for path in folder.path.glob("*.jsonl")) == 0


@pytest.mark.parametrize(
    ("log", "package", "extra"),
    [
        (Log(tensorboard=True), "tensorboard", "tensorboard"),
        (Log(wandb="turnwise"), "wandb", "wandb"),
        (Log(trackio="turnwise"), "trackio", "trackio"),
    ],
)
def test_a_missing_package_is_told_with_its_extra(folder: RunFolder, monkeypatch, log: Log, package: str, extra: str):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"log\.{extra} needs .* missing: pip install 'turnwise\[{extra}\]'$"):
        Loggers.of(log, folder)


def scalars(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder.path / "tensorboard")).Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_tensorboard_shows_the_numbers_of_every_row(folder: RunFolder):
    pytest.importorskip("tensorboard")
    loggers = Loggers.of(Log(tensorboard=True), folder)
    play(folder, loggers, range(1, 4), success=0.5)
    loggers.row({"step": 3, "eval/success": 0.25})
    loggers.close()
    shown = scalars(folder)
    assert shown.keys() == {"rollout/success", "loss/value", "eval/success"}
    assert shown["rollout/success"] == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert shown["eval/success"] == [(3, 0.25)]


def test_tensorboard_forgets_the_steps_that_a_resumed_run_plays_again(folder: RunFolder):
    pytest.importorskip("tensorboard")
    loggers = Loggers.of(Log(tensorboard=True), folder)
    play(folder, loggers, range(1, 3), success=0.5)
    folder.checkpoints.write(2, lambda draft: None, folder.marks())
    play(folder, loggers, range(3, 6), success=0.75)
    loggers.close()
    folder.rewind(2)
    loggers = Loggers.of(Log(tensorboard=True), folder)
    play(folder, loggers, range(3, 5), success=1.0)
    loggers.close()
    assert scalars(folder)["rollout/success"] == [(1, 0.5), (2, 0.5), (3, 1.0), (4, 1.0)]


def test_weights_and_biases_keeps_an_offline_run_in_the_folder(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    loggers = Loggers.of(Log(wandb="turnwise"), folder)
    play(folder, loggers, range(1, 3), success=0.5)
    loggers.close()
    (record,) = (folder.path / "wandb").glob("offline-run-*/run-*-2025-01-02T03-04-05-00-00.wandb")
    assert record.stat().st_size > 0


def test_weights_and_biases_tells_runs_of_one_name_and_time_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begun: list[dict[str, str]] = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **settings: begun.append(settings)))
    for place, algorithm in (("ppo/seed-0", "ppo"), ("grpo/seed-0", "grpo"), ("start/seed-0", "imitation")):
        stage = "imitation" if algorithm == "imitation" else "reinforcement"
        config = {"name": "geo", "stage": stage, "algorithm": {"name": algorithm}}
        Loggers.of(Log(wandb="turnwise"), RunFolder.create(tmp_path / place, config, META))
    Loggers.of(Log(wandb="turnwise"), RunFolder.open(tmp_path / "ppo" / "seed-0"))
    assert [settings["name"] for settings in begun] == ["geo train", "geo train", "geo sft", "geo train"]
    assert len({settings["id"] for settings in begun[:3]}) == 3
    assert begun[3]["id"] == begun[0]["id"]


EPISODE = "held-out task 3\n   1 where is it?\n   > <b>there</b>"


def test_tensorboard_shows_episodes_as_plain_texts(folder: RunFolder):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = Loggers.of(Log(tensorboard=True), folder)
    loggers.episodes(5, [EPISODE, "another"])
    loggers.episodes(6, [])
    loggers.close()
    events = EventAccumulator(str(folder.path / "tensorboard")).Reload()
    (logged,) = events.Tensors("eval/episodes_played/text_summary")
    (text,) = [value.decode() for value in logged.tensor_proto.string_val]
    assert (logged.step, text.splitlines()[2]) == (5, "       > <b>there</b>")
    assert text.endswith("    another")


def test_weights_and_biases_gets_episodes_as_a_table(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    logged: list[tuple[dict[str, object], int]] = []
    run = SimpleNamespace(log=lambda values, step: logged.append((values, step)))
    wandb = SimpleNamespace(init=lambda **settings: run, Table=lambda columns, data: (columns, data))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    Loggers.of(Log(wandb="turnwise"), folder).episodes(5, [EPISODE])
    assert logged == [({"eval/episodes_played": (["step", "episode"], [[5, EPISODE]])}, 5)]


def test_trackio_keeps_numbers_and_episodes_on_this_machine(folder: RunFolder, tmp_path: Path):
    """In a process of its own: trackio reads where it writes to when it is imported."""
    pytest.importorskip("trackio")
    program = f"""
from turnwise.recipe.schema import Log
from turnwise.runs import RunFolder
from turnwise.runs.loggers import Loggers

for success in (0.5, 0.75):  # the second time it is resumed
    loggers = Loggers.of(Log(trackio="turnwise"), RunFolder.open({str(folder.path)!r}))
    loggers.row({{"step": 1 if success == 0.5 else 2, "rollout/success": success}})
    loggers.episodes(2, [{EPISODE!r}])
    loggers.close()
"""
    settings = {**os.environ, "TRACKIO_DIR": str(tmp_path / "kept"), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", program], env=settings, check=True, timeout=120, capture_output=True)
    kept = b"".join(file.read_bytes() for file in (tmp_path / "kept").rglob("*") if file.is_file())
    assert b"rollout/success" in kept
    assert b"where is it?" in kept
