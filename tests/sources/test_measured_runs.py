"""Runs whose tasks depend on what was measured: cut, resumed and replayed they are the run that was left alone."""

from pathlib import Path
from typing import Any

import pytest

from tests.train.small_runs import (
    ENVS,
    LostMachineError,
    Screen,
    Stopping,
    last_tensors,
    played,
    rows,
    run,
    small_recipe,
    timeless,
    trajectories,
)
from turnwise.audit.replay import replay_step
from turnwise.audit.replay_episode import replay_episode
from turnwise.audit.verify import verify_run
from turnwise.policy.text import TextPolicy
from turnwise.runs.folder import RunFolder
from turnwise.train.stages import resume
from turnwise.train.state import read_state
from turnwise.train.trainer import Trainer

STAGES = [{"kwargs": {"turns": 1}, "success": 0.01, "least": 32}, {"kwargs": {"turns": 2}}]
CURRICULUM: dict[str, Any] = {"source": {"tasks": {"kind": "curriculum", "stages": STAGES}}}
DIFFICULTY: dict[str, Any] = {"source": {"tasks": {"kind": "difficulty", "seeds": 24}}}
STEPS = {"train": {"steps": 6, "learning_rate": 2e-2}}


def seeds(folder: Path, step: int) -> list[int | None]:
    return [each.seed for each in trajectories(played(folder, step))]


@pytest.fixture(scope="module", params=["curriculum", "difficulty"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Six steps without a break."""
    changes = {**(CURRICULUM if request.param == "curriculum" else DIFFICULTY), **STEPS}
    folder = tmp_path_factory.mktemp(request.param) / "run"
    run(folder, changes)
    return folder, changes


@pytest.mark.parametrize("after", [3, 4])
def test_cut_in_the_middle_and_resumed_it_plays_the_same_tasks(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path, after: int
) -> None:
    folder, changes = whole
    with pytest.raises(LostMachineError):
        run(tmp_path / "cut", changes, console=Stopping(after=after))
    assert read_state(max((tmp_path / "cut" / "checkpoints").glob("step_*")))["source"]["settled"]
    run(tmp_path / "cut")
    for step in range(1, 7):
        assert seeds(tmp_path / "cut", step) == seeds(folder, step)
    assert timeless(tmp_path / "cut") == timeless(folder)
    assert last_tensors(tmp_path / "cut") == last_tensors(folder)


def test_its_steps_and_episodes_are_replayed(whole: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = whole
    replayed = replay_step(folder, 5)
    assert replayed.same, replayed.conclusion
    for step in (1, 6):
        episode = played(folder, step)[0].trajectories[0]
        again = replay_episode(folder, step, episode.id)
        assert again.same, again.conclusion


def test_the_curriculum_moved_on_and_said_so(tmp_path: Path) -> None:
    run(tmp_path / "run", {**CURRICULUM, **STEPS})
    levels = [row["source/level"] for row in rows(tmp_path / "run")]
    assert levels[0] == 0
    assert levels[-1] == 1
    assert levels == sorted(levels)
    first, last = (trajectories(played(tmp_path / "run", step)) for step in (1, 6))
    assert {each.kwargs["turns"] for each in first} == {1}
    assert {each.kwargs["turns"] for each in last} == {2}


def test_the_source_of_a_run_cannot_change_in_its_middle(tmp_path: Path) -> None:
    run(tmp_path / "run", {"train": {"steps": 2}})
    with pytest.raises(ValueError, match=r"source\.expert cannot change in the middle of a run"):
        resume(tmp_path / "run", overrides={"source": {"expert": 1}, "train": {"steps": 4}})


def test_a_run_that_plays_ahead_measures_too_and_resumes(tmp_path: Path) -> None:
    slow = {"env": {"id": f"{ENVS}:Slow", "kwargs": {"seconds": 0.01}, "check": False}}
    changes = {**slow, **DIFFICULTY, **STEPS, "algorithm": {"preset": "rebn", "max_lag": 1}}
    with pytest.raises(LostMachineError):
        run(tmp_path / "run", changes, console=Stopping(after=3))
    state = read_state(max((tmp_path / "run" / "checkpoints").glob("step_*")))["source"]
    assert sorted(state["recent"]) == ["2"]  # step 3 follows from step 1, and step 4 from step 2
    assert run(tmp_path / "run")["step"] == 6
    assert [row["step"] for row in rows(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]


def test_a_restored_run_keeps_what_it_has_measured(tmp_path: Path) -> None:
    recipe = small_recipe({**DIFFICULTY, "train": {"steps": 2}})
    folder = RunFolder.create(tmp_path / "run", recipe.model_dump(mode="json"), {"threads": 1})
    console = Screen()
    console.started(recipe, folder.path)
    trainer = Trainer(recipe, folder, {"policy": TextPolicy.load("pico")}, console=console)
    measured = list[dict[str, Any]]()
    run_periodic_work = trainer._run_periodic_work

    def restore(step: int) -> None:
        run_periodic_work(step)
        measured.append(trainer.source.state_dict())
        trainer._restore(trainer.trainees[0])
        measured.append(trainer.source.state_dict())

    trainer._run_periodic_work = restore
    trainer.run()
    assert measured[0]["settled"]
    assert measured[0] == measured[1]


def test_verify_passes_over_what_no_policy_sampled(tmp_path: Path) -> None:
    run(tmp_path / "run", {"algorithm": "reinforce", "source": {"expert": 1}, "train": {"steps": 1}})
    assert rows(tmp_path / "run")[0]["train/sequences"] == 32  # sixteen of the policy and as many of the expert
    checks = verify_run(tmp_path / "run")
    defects = [finding for check in checks for finding in check.findings if finding.verdict == "defect"]
    assert not defects
