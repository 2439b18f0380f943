"""Carrying on: one writer at a time, nothing changed that makes it another run, nothing begun anew by mistake."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.small_runs import Screen, small_recipe
from turnwise.envs.process import EnvSource
from turnwise.runs.folder import RunFolder
from turnwise.train.stages import imitate, resume, train


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    train(small_recipe({"algorithm": "ppo"}), tmp_path / "run", console=Screen())
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_that_another_process_writes_is_left_alone(finished: Path) -> None:
    before = contents(finished)
    program = "import sys; from tests.train.test_stages import resume_and_tell; resume_and_tell(sys.argv[1])"
    with RunFolder.open(finished).claim():
        command = [sys.executable, "-c", program, str(finished)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=os.getcwd(), timeout=120)
    assert "is being written by another process" in done.stdout
    assert contents(finished) == before


def resume_and_tell(folder: str) -> None:
    try:
        resume(Path(folder), console=Screen(), overrides={"train": {"steps": 6}})
    except ValueError as error:
        print(error)


@pytest.mark.parametrize("change", [{"seed": 1}, {"env": {"id": "search/geo-1hop"}}, {"train": {"critic": "shared"}}])
def test_what_a_run_is_about_cannot_change(finished: Path, change: dict[str, object]) -> None:
    before = contents(finished)
    with pytest.raises(ValueError, match="cannot change in the middle of a run"):
        resume(finished, console=Screen(), overrides=change)
    assert contents(finished) == before


def test_a_run_whose_checkpoints_are_gone_is_not_begun_anew_over_its_journals(finished: Path) -> None:
    shutil.rmtree(finished / "checkpoints")
    before = contents(finished)
    with pytest.raises(ValueError, match="no complete checkpoint"):
        resume(finished, console=Screen())
    assert contents(finished) == before


def test_a_longer_run_carries_on_and_keeps_its_new_length(finished: Path) -> None:
    assert resume(finished, console=Screen(), overrides={"train": {"steps": 6}})["step"] == 6
    assert RunFolder.open(finished).config["train"]["steps"] == 6


def test_fewer_steps_than_were_done_are_refused(finished: Path) -> None:
    before = contents(finished)
    with pytest.raises(ValueError, match=r"has done \d+ steps already; train.steps=1 must be more"):
        resume(finished, console=Screen(), overrides={"train": {"steps": 1}})
    assert contents(finished) == before


def test_a_resume_that_fails_leaves_the_recipe_as_it_was(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(finished)

    def gone(*_: object, **__: object) -> None:
        raise ValueError("cannot import mine:Env")

    monkeypatch.setattr(EnvSource, "build", gone)
    with pytest.raises(ValueError, match="cannot import"):
        resume(finished, console=Screen(), overrides={"train": {"steps": 9}})
    assert contents(finished) == before


def test_an_imitation_cannot_be_made_longer_by_its_steps(tmp_path: Path) -> None:
    recipe = small_recipe({"algorithm": "ppo", "sft": {"demonstrations": 8, "epochs": 1, "batch": 4, "warmup": 2}})
    screen = Screen()
    imitate(recipe, tmp_path / "run", console=screen)
    assert "sft.warmup=2 covers all 2 steps: none has the full rate" in screen.text
    with pytest.raises(ValueError, match=r"follow from sft.demonstrations"):
        resume(tmp_path / "run", console=Screen(), overrides={"train": {"steps": 9}})
    with pytest.raises(ValueError, match="start a new one with `turnwise sft`"):
        resume(tmp_path / "run", console=Screen(), overrides={"sft": {"epochs": 2}})
