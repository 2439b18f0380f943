"""`turnwise replay` comes to the same numbers from the ledger, and says where a run or an environment does not."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.train.recorded_runs import make_run
from turnwise.audit.replay import replay_step
from turnwise.audit.replay_episode import replay_episode
from turnwise.audit.verify import verify_run
from turnwise.cli import app
from turnwise.runs import RunFolder, read_groups, write_groups
from turnwise.types import Trajectory


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps with a critic and a scale, of which the checkpoints 0, 2 and 4 are kept."""
    train = {"steps": 4, "learning_rate": 5e-4, "critic_learning_rate": 1e-3, "warmup": 3}
    return make_run(tmp_path_factory.mktemp("replay") / "run", train=train, checkpoint={"every": 2})


@pytest.fixture
def restored(run: Path) -> Iterator[Path]:
    """The run, whose events and ledgers are as they were when the test is over."""
    files = [run / "events.jsonl", *(run / "rollouts").iterdir()]
    before = {file: file.read_bytes() for file in files}
    yield run
    for file, content in before.items():
        file.write_bytes(content)


def rewrite(run: Path, step: int, **changes: Any) -> Trajectory:
    """Change fields of a step's first trajectory's first turn."""
    file = RunFolder.open(run).rollouts_file(step)
    groups = read_groups(file)
    for name, value in changes.items():
        setattr(groups[0].trajectories[0].turns[0], name, value)
    write_groups(file, groups)
    return groups[0].trajectories[0]


def add_guard_event(run: Path, step: int, action: str) -> None:
    RunFolder.open(run).events.append({"step": step, "kind": "guard", "signal": "ratio-tail", "action": action})


def number(run: Path, step: int, name: str) -> float | None:
    return next(each.replayed for each in replay_step(run, step).numbers if each.name == name)


@pytest.mark.parametrize(("step", "start"), [(1, 0), (3, 2), (4, 2)])
def test_a_step_comes_out_equal_to_the_last_bit(run: Path, step: int, start: int) -> None:
    replayed = replay_step(run, step)
    recorded = json.loads((run / "metrics.jsonl").read_text().splitlines()[step - 1])
    names = [name for name in recorded if name.startswith(("loss/", "train/"))]
    assert (replayed.start, replayed.same, replayed.circumstances) == (start, True, [])
    assert {each.name: each.replayed for each in replayed.numbers} == {name: recorded[name] for name in names}
    assert len(names) == 26


def test_without_checkpoints_a_step_is_learnt_again_from_the_beginning(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints")
    replayed = replay_step(copy, 3)
    assert replayed.start == 0
    assert replayed.conclusion == "step 3, learnt again from the beginning: 26 numbers are equal to the last bit"


VARIANTS: dict[str, dict[str, Any]] = {
    "a renewed reference": {
        "algorithm": {"preset": "grpo", "sampling": {"kind": "group", "size": 4}, "minibatches": 2},
        "train": {"steps": 3, "learning_rate": 5e-4, "reference_every": 2},
        "checkpoint": {"every": 10},
    },
    "an adapter beside its base": {
        "model": {"name": "pico", "lora": {"rank": 2}},
        "algorithm": {"preset": "rloo", "sampling": {"kind": "group", "size": 4}},
    },
    "a shared critic": {"train": {"steps": 3, "critic": "shared", "learning_rate": 5e-4}},
    "rollouts that overlap": {"algorithm": {"preset": "ppo", "max_lag": 1, "mismatch": "truncated"}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_kind_of_run_comes_out_equal(tmp_path: Path, name: str) -> None:
    replayed = replay_step(make_run(tmp_path / "run", **VARIANTS[name]), 3)
    assert replayed.start == 2
    assert replayed.same, replayed.conclusion


def test_both_stages_of_a_run_with_imitation_come_out_equal(tmp_path: Path) -> None:
    sft = {"demonstrations": 6, "batch": 3, "epochs": 1}
    run = make_run(tmp_path / "run", env={"id": "lookup/2hop", "check": False}, sft=sft, train={"steps": 1})
    assert replay_step(run, 1).same
    assert replay_step(run / "sft", 2).same
    assert [finding.text for check in verify_run(run / "sft") for finding in check.findings if finding.text] == [
        "no episode has log-probs of a sampler"
    ] * 2
    groups = read_groups(RunFolder.open(run / "sft").rollouts_file(2))
    assert replay_episode(run / "sft", 2, groups[0].trajectories[0].id).same


def test_a_changed_ledger_is_told_with_the_largest_difference(restored: Path) -> None:
    rewrite(restored, 4, reward=5.0)
    done = CliRunner().invoke(app, ["replay", str(restored), "--step", "4"])
    assert done.exit_code == 1
    assert "numbers differ; the largest difference is" in " ".join(done.output.split())
    assert "differs by" in done.output


def test_the_command_shows_every_number_of_an_equal_step(run: Path) -> None:
    done = CliRunner().invoke(app, ["replay", str(run), "--step", "3"])
    assert done.exit_code == 0
    assert "step 3, learnt again from checkpoint 2: 26 numbers are equal to the last bit" in done.output
    recorded = json.loads((run / "metrics.jsonl").read_text().splitlines()[2])
    assert repr(recorded["loss/policy"]) in done.output


def test_a_learning_rate_that_the_guard_made_smaller_is_honoured(restored: Path) -> None:
    # The warm-up of three steps is over at step 4.
    assert number(restored, 4, "train/learning_rate") == 5e-4
    add_guard_event(restored, 3, "shrink")
    assert number(restored, 4, "train/learning_rate") == pytest.approx(1e-4)
    assert replay_step(restored, 3).same  # what was done after a step does not change the step


def test_steps_after_a_restored_state_are_refused_with_those_that_can_be_had(restored: Path) -> None:
    add_guard_event(restored, 3, "restore")
    with pytest.raises(ValueError, match=r"after step 3 the guard restored .* replay step 3 or an earlier one, or one"):
        replay_step(restored, 4)
    assert replay_step(restored, 3).same


def test_a_step_between_without_its_ledger_is_named(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    RunFolder.open(copy).rollouts_file(3).unlink()
    with pytest.raises(ValueError, match=r"no trajectories of step 3; it has those of step 1-2, 4"):
        replay_step(copy, 4)
    done = CliRunner().invoke(app, ["replay", str(copy), "--step", "5"])
    assert (done.exit_code, done.stderr) == (2, f"turnwise: {copy} has no step 5; choose one of 1 to 4\n")


def test_a_step_from_which_the_filters_left_nothing_is_empty_then_as_now(tmp_path: Path) -> None:
    # No try earns anything in this environment, so dapo's filter keeps none of them.
    env = {"id": "tests.train.recorded_runs:Forgetful", "check": False}
    algorithm = {"preset": "dapo", "sampling": {"kind": "group", "size": 8}}
    replayed = replay_step(make_run(tmp_path / "run", env=env, algorithm=algorithm, train={"steps": 1}), 1)
    assert replayed.numbers == []
    assert "nothing was learnt, then as now" in replayed.conclusion


# Episodes against their environment.


def test_an_episode_comes_out_as_it_was_turn_by_turn(run: Path) -> None:
    for group in read_groups(RunFolder.open(run).rollouts_file(2)):
        trajectory = group.trajectories[0]
        replayed = replay_episode(run, 2, trajectory.id)
        assert replayed.same, replayed.moments
        assert len(replayed.moments) == len(trajectory.turns) + 1


def test_an_environment_that_answers_otherwise_but_always_alike_has_changed(restored: Path) -> None:
    trajectory = rewrite(restored, 2, observation="Guess my letter.")
    done = CliRunner().invoke(app, ["replay", str(restored), "--step", "2", "--episode", trajectory.id])
    assert done.exit_code == 1
    assert "agent, turn 0, recorded: ('Guess my letter.', " in done.output
    assert "always in the same way" in " ".join(done.output.split())


def test_an_environment_that_never_answers_alike_is_called_not_deterministic(tmp_path: Path) -> None:
    env = {"id": "tests.train.recorded_runs:Forgetful", "check": False}
    run = make_run(tmp_path / "run", env=env, train={"steps": 1})
    trajectory = read_groups(RunFolder.open(run).rollouts_file(1))[0].trajectories[0]
    replayed = replay_episode(run, 1, trajectory.id)
    assert not replayed.deterministic
    assert "is not deterministic" in replayed.conclusion
    first = replayed.moments[0]
    assert (first.place, first.same_observation, first.same_outcome) == ("turn 0", False, True)


def test_all_seats_of_an_episode_are_played_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", env={"id": "tests.train.recorded_runs:Duet", "check": False}, train={"steps": 1})
    replayed = replay_episode(run, 1, "step-1/task-3/0")
    assert replayed.same, replayed.moments
    assert [(moment.seat, moment.place) for moment in replayed.moments if moment.place == "end"] == [
        ("first", "end"),
        ("second", "end"),
    ]
    assert replay_episode(run, 1, "step-1/task-3/0/second").moments == replayed.moments


def test_an_unknown_episode_is_answered_with_those_there_are(run: Path) -> None:
    with pytest.raises(ValueError, match=r"no episode 'task-8/0'; it has 8, such as step-2/task-8/0"):
        replay_episode(run, 2, "task-8/0")
