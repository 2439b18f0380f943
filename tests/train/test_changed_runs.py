"""Runs that are carried on with a change, or after the guard stopped them: nothing of their history is lost."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.train.small_runs import LostMachineError, Screen, Stopping, rows, run, small_recipe, timeless
from turnwise.audit.replay import replay_step
from turnwise.cli import app
from turnwise.recipe.loading import load_recipe
from turnwise.recipe.schema import Recipe
from turnwise.runs import RunFolder, read_journal
from turnwise.train.resuming import require_same_run
from turnwise.train.stages import imitate, resume, train
from turnwise.train.state import read_state

DECAY: dict[str, Any] = {"algorithm": "ppo", "train": {"steps": 4, "schedule": "cosine", "learning_rate": 1e-3}}


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Four steps, then four more under another recipe, and what the screen said about that."""
    folder, screen = tmp_path_factory.mktemp("changed") / "run", Screen()
    run(folder, DECAY)
    changes = {"train": {"steps": 8, "weight_decay": 0.1, "betas": [0.8, 0.9]}, "rollout": {"temperature": 0.7}}
    resume(folder, console=screen, overrides=changes)
    return folder, screen.text


def test_every_command_and_change_is_kept_with_the_step_at_which_it_took_effect(changed: tuple[Path, str]) -> None:
    folder = changed[0]
    first, second = read_journal(folder / "history.jsonl")
    assert (first["kind"], first["step"], first["changes"]) == ("started", 0, [])
    assert (second["kind"], second["step"]) == ("resumed", 4)
    assert set(second["changes"]) == {
        "train.steps: 4 → 8",
        "train.weight_decay: 0.0 → 0.1",
        "train.betas: [0.9, 0.999] → [0.8, 0.9]",
        "rollout.temperature: 1.0 → 0.7",
    }
    assert all(row["command"] for row in (first, second))
    assert [event["kind"] for event in second["undone"]] == ["finished"]
    assert first["recipe"]["train"]["steps"] == 4
    assert second["recipe"] == RunFolder.open(folder).config


def test_the_screen_says_that_the_rate_of_a_schedule_jumps(changed: tuple[Path, str]) -> None:
    assert "this change sets the learning rate of step 5 to 0.00045; without it, it would be 0.0001" in changed[1]


@pytest.mark.parametrize("step", [4, 5])
def test_a_step_is_replayed_with_the_recipe_that_was_in_force(changed: tuple[Path, str], step: int) -> None:
    replayed = replay_step(changed[0], step)
    assert replayed.same, replayed.conclusion


def test_a_replay_passes_through_a_change(changed: tuple[Path, str], tmp_path: Path) -> None:
    copy = shutil.copytree(changed[0], tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints")
    replayed = replay_step(copy, 6)
    assert (replayed.start, replayed.same) == (0, True), replayed.conclusion


def test_a_resume_without_a_change_keeps_its_command_and_says_nothing_of_rates(tmp_path: Path) -> None:
    screen = Screen()
    with pytest.raises(LostMachineError):
        run(tmp_path / "run", DECAY, console=Stopping(after=3))
    resume(tmp_path / "run", console=screen)
    history = read_journal(tmp_path / "run" / "history.jsonl")
    assert [(row["kind"], row["step"], row["changes"]) for row in history] == [("started", 0, []), ("resumed", 2, [])]
    assert "learning rate" not in screen.text


def test_a_resume_that_does_not_come_to_load_leaves_recipe_and_history(tmp_path: Path) -> None:
    run(tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes().replace(b'"step": 1', b'"step": 7', 1))
    kept = {name: (tmp_path / "run" / name).read_bytes() for name in ("config.yaml", "history.jsonl", "events.jsonl")}
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged or was edited"):
        resume(tmp_path / "run", console=Screen(), overrides={"train": {"steps": 9}})
    assert {name: (tmp_path / "run" / name).read_bytes() for name in kept} == kept


# A run that the guard stopped.

FAULTY: dict[str, Any] = {
    "env": {"id": "tests.train.small_envs:Dead", "check": False},
    "guard": "act",
    "train": {"steps": 8},
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    assert run(folder, FAULTY)["status"] == "stopped"
    return folder


def test_a_stop_of_the_guard_is_in_its_checkpoint_and_in_its_event(stopped: Path) -> None:
    latest = RunFolder.open(stopped).checkpoints.latest()
    assert latest is not None
    reason = read_state(latest)["policies"]["policy"]["guard"]["stopped"]
    assert reason.startswith("faults at step 2: ")
    assert rows(stopped, "events")[-1]["kind"] == "stopped"
    assert rows(stopped, "events")[-1]["reason"] == reason


def test_a_run_that_was_cut_before_it_could_say_so_is_stopped_when_resumed(stopped: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(stopped, tmp_path / "copy")
    events = (copy / "events.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "events.jsonl").write_bytes(b"".join(events[:-1]))
    assert run(copy)["status"] == "stopped"
    assert timeless(copy, "events") == timeless(stopped, "events")
    assert timeless(copy) == timeless(stopped)


def test_who_resumes_a_stopped_run_is_told_why_it_was_and_goes_on(stopped: Path, tmp_path: Path) -> None:
    copy, screen = shutil.copytree(stopped, tmp_path / "copy"), Screen()
    with pytest.raises(LostMachineError):
        resume(copy, console=Leaving(screen))
    assert "the guard stopped this run, faults at step 2: " in screen.text
    undone = read_journal(copy / "history.jsonl")[-1]["undone"]
    assert [event["kind"] for event in undone] == ["stopped"]


class Leaving(Screen):
    """Passes everything on, and leaves when the first step is to be played."""

    def __init__(self, other: Screen) -> None:
        super().__init__()
        self._out = other._out

    def phase(self, name: str) -> None:
        if name == "playing":
            raise LostMachineError


# Two stages.


def test_a_change_in_the_imitation_stage_is_kept_for_the_stage_that_follows(tmp_path: Path) -> None:
    sft = {"demonstrations": 8, "epochs": 1, "batch": 4, "warmup": 0}
    recipe = small_recipe({"algorithm": "ppo", "sft": sft, "checkpoint": {"every": 1}})
    with pytest.raises(LostMachineError):
        train(recipe, tmp_path / "run", console=Stopping(after=2))
    with pytest.raises(LostMachineError):
        resume(tmp_path / "run", console=Stopping(after=2), overrides={"train": {"steps": 3, "weight_decay": 0.2}})
    assert RunFolder.open(tmp_path / "run").config["train"]["steps"] == 3
    assert resume(tmp_path / "run", console=Screen())["step"] == 3
    assert RunFolder.open(tmp_path / "run" / "sft").config["train"]["weight_decay"] == 0.2
    assert replay_step(tmp_path / "run" / "sft", 1).same
    assert replay_step(tmp_path / "run" / "sft", 2).same


def test_what_a_kill_left_in_a_finished_imitation_is_removed(tmp_path: Path) -> None:
    sft = {"demonstrations": 4, "epochs": 1, "batch": 4, "warmup": 0}
    train(small_recipe({"algorithm": "ppo", "sft": sft, "train": {"steps": 1}}), tmp_path / "run", console=Screen())
    checkpoints = tmp_path / "run" / "sft" / "checkpoints"
    shutil.copytree(checkpoints / "step_000000", checkpoints / "step_000000.old.draft")
    resume(tmp_path / "run", console=Screen())
    assert not list(tmp_path.rglob("*.draft"))


def test_an_imitation_never_goes_on_with_a_run_that_another_command_made(tmp_path: Path) -> None:
    recipe = small_recipe({"algorithm": "ppo", "sft": {"demonstrations": 4, "epochs": 1, "batch": 4, "warmup": 0}})
    imitate(recipe, tmp_path / "run", console=Screen())
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="already contains a run"):
        imitate(recipe, tmp_path / "run", console=Screen())
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


# Damaged folders get one message.


@pytest.mark.parametrize("file", ["config.yaml", "meta.json"])
@pytest.mark.parametrize("content", [b"\xff\xfe", b"- [", b"[" * 20_000, b"seed: 3\n"])
@pytest.mark.parametrize(
    "command", [["resume"], ["verify"], ["replay", "--step", "1"], ["eval"]], ids=lambda command: command[0]
)
def test_a_damaged_file_ends_a_command_with_one_message_that_names_it(
    changed: tuple[Path, str], tmp_path: Path, file: str, content: bytes, command: list[str]
) -> None:
    copy = shutil.copytree(changed[0], tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints"))
    (copy / file).write_bytes(content)
    done = CliRunner().invoke(app, [command[0], str(copy), *command[1:]])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"turnwise: {copy / file} is damaged")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("journal", "command"),
    [("history", ["verify", "--json"]), ("history", ["replay", "--step", "1"]), ("metrics", ["replay", "--step", "1"])],
)
def test_a_line_without_its_step_is_named_by_the_command_that_reads_it(
    changed: tuple[Path, str], tmp_path: Path, journal: str, command: list[str]
) -> None:
    copy = shutil.copytree(changed[0], tmp_path / "copy")
    with (copy / f"{journal}.jsonl").open("a") as file:
        file.write("{}\n")
    done = CliRunner().invoke(app, [command[0], str(copy), *command[1:]])
    assert done.exit_code == (1 if command[0] == "verify" else 2)  # a defect that it found, or a refusal
    assert f"{copy / journal}.jsonl has no valid step; remove the line" in done.output


@pytest.mark.parametrize("command", [["resume"], ["verify"], ["replay", "--step", "1"]], ids=lambda command: command[0])
def test_a_meta_file_without_a_circumstance_ends_a_command_with_one_message(
    changed: tuple[Path, str], tmp_path: Path, command: list[str]
) -> None:
    copy = shutil.copytree(changed[0], tmp_path / "copy")
    (copy / "meta.json").write_text('{"schema": 3}')
    done = CliRunner().invoke(app, [command[0], str(copy), *command[1:]])
    assert done.exit_code == 2
    assert f"{copy / 'meta.json'} is damaged: " in done.stderr


def test_weights_beside_those_of_the_checkpoint_are_never_loaded(changed: tuple[Path, str], tmp_path: Path) -> None:
    copy = shutil.copytree(changed[0], tmp_path / "copy")
    newest, older = sorted((copy / "checkpoints").glob("step_*"))[-1], sorted((copy / "checkpoints").glob("step_*"))[0]
    shutil.copy(older / "model.safetensors", newest / "zz.safetensors")
    for command in (["resume", str(copy), "train.steps=9"], ["eval", str(copy)], ["eval", str(newest)]):
        done = CliRunner().invoke(app, [*command])
        assert done.exit_code == 2
        assert "zz.safetensors is not part of its checkpoint" in done.stderr
    assert [row["step"] for row in rows(copy)] == list(range(1, 9))


def test_a_resumed_run_may_reach_its_judge_elsewhere_but_not_ask_another_one() -> None:
    def judged(**changes: Any) -> Recipe:
        judge = {"kind": "chat", "url": "http://127.0.0.1:8000/v1", "model": "m", **changes}
        return load_recipe(None, {"env": "chat/prompts", "judge": judge})

    require_same_run(judged(), judged(url="http://127.0.0.1:9000/v1", seconds=120, retries=9, concurrency=2))
    with pytest.raises(ValueError, match=r"judge\.model cannot change"):
        require_same_run(judged(), judged(model="other"))
