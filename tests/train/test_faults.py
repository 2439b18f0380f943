"""What goes wrong around a run does not end it, or ends it with one sentence and nothing lost."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

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
from turnwise.batch import TokenBatch
from turnwise.learn.learner import Learner
from turnwise.recipe.loading import dump_recipe
from turnwise.report.summary import summarize_run
from turnwise.runs.folder import RunFolder
from turnwise.runs.reading import read_run
from turnwise.train.stages import resume, train
from turnwise.types import StopReason

ROOT = Path(__file__).parent.parent.parent
FAULTY: dict[str, Any] = {
    "env": {"id": f"{ENVS}:Faulty", "kwargs": {"share": 0.1}, "check": False},
    "rollout": {"episodes": 64, "step_seconds": 0.3, "max_tokens": 8, "lockstep": True},
    "train": {"steps": 5},
}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The episodes in each batch that the learner gets to see."""
    seen: list[set[str]] = []
    learn = Learner.learn

    def listen(learner: Learner, batch: TokenBatch, *arguments: Any) -> Any:
        seen.append({batch.trajectory_names[number] for number in batch.trajectory_S.tolist()})
        return learn(learner, batch, *arguments)

    monkeypatch.setattr(Learner, "learn", listen)
    return seen


def test_faults_in_a_tenth_of_the_steps_do_not_stop_a_run_and_enter_no_batch(
    tmp_path: Path, trained: list[set[str]]
) -> None:
    screen = Screen()
    assert run(tmp_path / "run", FAULTY, console=screen)["status"] == "finished"
    metrics, events = rows(tmp_path / "run"), rows(tmp_path / "run", "events")
    stops: set[StopReason] = set()
    errors: set[str] = set()
    counts: list[int] = []
    for row, names in zip(metrics, trained, strict=True):
        episodes = trajectories(played(tmp_path / "run", row["step"]))
        failed = [each for each in episodes if each.stop.is_failure]
        assert len(episodes) == 64  # the ledger has them all
        assert names == {each.id for each in episodes if not each.stop.is_failure}
        assert row["rollout/faults"] == pytest.approx(len(failed) / 64)
        counts.append(len(failed))
        stops |= {each.stop for each in failed}
        errors |= {str(each.info["error"]) for each in failed}
    assert 0.05 < sum(counts) / (5 * 64) < 0.3
    assert stops == {StopReason.ENV_ERROR, StopReason.TIMEOUT}
    assert [text for text in errors if "the tool broke" in text]
    assert [text for text in errors if "reward" in text]  # NaN is no reward
    assert [text for text in errors if "five" in text or "tuple" in text or "step" in text]
    faults = [event for event in events if event["kind"] == "faults"]
    assert [event["share"] for event in faults] == [row["rollout/faults"] for row in metrics]
    assert all(event["last_error"] in errors for event in faults)
    assert f"{sum(counts)} episodes were lost to faults and entered no batch" in screen.text
    assert [int(count) for count in re.findall(r"faults +(\d+)", screen.text)] == counts


def test_a_coroutine_that_blocks_costs_its_own_episodes_and_the_run_goes_on(tmp_path: Path) -> None:
    recipe = {"env": {"id": f"{ENVS}:Blocks", "check": False}, "train": {"steps": 1}}
    limits = {"step_seconds": 2.0, "max_tokens": 16}
    assert run(tmp_path / "run", {**recipe, "rollout": limits})["status"] == "finished"
    failed = [each for each in trajectories(played(tmp_path / "run", 1)) if each.stop.is_failure]
    assert {each.stop for each in failed} == {StopReason.TIMEOUT}
    assert {(each.seed or 0) % 4 for each in failed} == {3}


def test_objects_that_cannot_be_written_and_errors_that_cannot_be_told_end_no_run_and_no_resume(tmp_path: Path) -> None:
    recipe = {"env": {"id": f"{ENVS}:Peculiar", "check": False}, "train": {"steps": 3}, "rollout": {"max_tokens": 16}}
    with pytest.raises(LostMachineError):
        run(tmp_path / "run", recipe, console=Stopping(after=2))
    assert run(tmp_path / "run")["status"] == "finished"
    episodes = trajectories(played(tmp_path / "run", 3))
    errors = {str(each.info["error"]).partition(" (small_envs")[0] for each in episodes if each.stop.is_failure}
    assert errors == {"OddError: (its message cannot be read: RuntimeError)", "KeyboardInterrupt: "}
    whole = [each.info for each in episodes if each.stop is StopReason.DONE]
    assert {(info["odd"], info["deep"]) for info in whole} == {
        ("<Odd that cannot be shown>", "<list that cannot be shown>")
    }


def test_observations_beyond_all_contexts_end_their_episodes_and_the_run_goes_on(tmp_path: Path) -> None:
    recipe = {"env": {"id": f"{ENVS}:Flood", "check": False}, "train": {"steps": 1}, "rollout": {"episodes": 4}}
    assert run(tmp_path / "run", recipe)["status"] == "finished"
    episodes = trajectories(played(tmp_path / "run", 1))
    assert {each.stop for each in episodes if (each.seed or 0) % 2} == {StopReason.CONTEXT_FULL}
    assert all(each.turns for each in episodes if not (each.seed or 0) % 2)


def test_an_environment_that_cannot_be_closed_is_trained_on_and_resumed(tmp_path: Path) -> None:
    recipe = {"env": {"id": f"{ENVS}:Clingy", "check": False}, "train": {"steps": 4}}
    with pytest.raises(LostMachineError):
        run(tmp_path / "run", recipe, console=Stopping(after=3))
    assert run(tmp_path / "run")["status"] == "finished"
    assert [row["rollout/faults"] for row in rows(tmp_path / "run")] == [0.0] * 4


def test_a_faulty_run_still_learns(tmp_path: Path) -> None:
    sizes = {"rollout": {**FAULTY["rollout"], "step_seconds": 0.5}, "train": {"steps": 12}}
    run(tmp_path / "run", {**FAULTY, **sizes, "eval": {"episodes": 64}})
    before, after = (row["eval/success"] for row in rows(tmp_path / "run", "evals"))
    assert before < 0.2
    assert after > 0.6


@pytest.mark.parametrize("max_lag", [0, 1])
def test_an_environment_that_always_fails_ends_the_run_with_its_error(tmp_path: Path, max_lag: int) -> None:
    recipe = {
        "env": {"id": f"{ENVS}:Dead", "check": False},
        "algorithm": {"preset": "rebn", "max_lag": max_lag},
        "train": {"steps": 9},
        "eval": {"episodes": 4},
    }
    with pytest.raises(ValueError, match=r"failed in each of the 48 episodes that it played.*no database") as caught:
        run(tmp_path / "run", recipe)
    assert "\n" not in str(caught.value)
    assert [row["rollout/faults"] for row in rows(tmp_path / "run")] == [1.0, 1.0, 1.0]
    assert RunFolder.open(tmp_path / "run").checkpoints.latest() is not None


@pytest.mark.parametrize(("env", "steps"), [("Dead", 1), ("DeadSteps", 1), ("DeadSteps", 40)])
def test_a_run_whose_environment_never_worked_fails_and_calls_nothing_healthy(
    tmp_path: Path, env: str, steps: int
) -> None:
    recipe = {"env": {"id": f"{ENVS}:{env}", "check": False}, "train": {"steps": steps}, "rollout": {"max_tokens": 12}}
    screen = Screen()
    with pytest.raises(
        ValueError, match=r"failed in each of the \d+ episodes that it played.*no database.*stack trace"
    ):
        run(tmp_path / "run", recipe, console=screen)
    assert "guard healthy" not in screen.text
    assert "learn from" not in screen.text
    events = rows(tmp_path / "run", "events")
    assert "no database" in events[-1]["text"]
    assert events[-1]["kind"] == "failed"
    trace = next(event["traceback"] for event in events if event["kind"] == "faults")
    assert 'small_envs.py", line' in trace
    assert trace.endswith("RuntimeError: no database\n")
    (failed, *_) = [each for each in trajectories(played(tmp_path / "run", 1)) if each.stop.is_failure]
    assert str(failed.info["traceback"]).endswith("RuntimeError: no database\n")
    assert summarize_run(read_run(tmp_path / "run"), None)["tone"] == "bad"


def test_under_a_guard_that_acts_it_is_stopped_one_step_earlier_and_its_policy_kept(tmp_path: Path) -> None:
    recipe = {"env": {"id": f"{ENVS}:Dead", "check": False}, "train": {"steps": 9}, "guard": "act"}
    screen = Screen()
    assert run(tmp_path / "run", recipe, console=screen)["status"] == "stopped"
    assert "nothing to learn from" not in screen.text  # nothing was played, so nothing is said about the task
    (incident,) = [event for event in rows(tmp_path / "run", "events") if event["kind"] == "guard"]
    assert (incident["step"], incident["signal"], incident["action"]) == (2, "faults", "stop")


def test_an_environment_that_fails_the_doctor_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unfit for training: .*no database.*check-env"):
        run(tmp_path / "run", {"env": {"id": f"{ENVS}:Dead", "check": True}})
    assert list(tmp_path.iterdir()) == []


# A disk that fills up while a run writes to it.

MOUNT = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o size=4m none "$1" && shift && "$@"']
FULL_DISK = """
import sys
from pathlib import Path
from tests.train.small_runs import Screen, small_recipe, run, timeless, last_tensors
from turnwise.runs.checkpoints import find_fault
from turnwise.runs.folder import RunFolder, RunFolderError
from turnwise.train.stages import resume, train

here = Path(sys.argv[1])

class Filling(Screen):
    def step(self, row, *, guard=""):
        super().step(row, guard=guard)
        if row["step"] == 3:
            free = (here / "ballast").open("wb")
            try:
                while True:
                    free.write(bytes(4096)); free.flush()
            except OSError:
                pass

try:
    train(small_recipe({"train": {"steps": 6}}), here / "run", console=Filling())
except RunFolderError as error:
    message = str(error)
assert message.startswith(f"cannot write {here / 'run'}"), message
assert message.endswith("No space left on device; free some disk space"), message
assert "\\n" not in message
checkpoints = RunFolder.open(here / "run").checkpoints
assert checkpoints.latest().name == "step_000002" and not find_fault(checkpoints.at(2))
(here / "ballast").unlink()
assert resume(here / "run", console=Screen())["status"] == "finished"
train(small_recipe({"train": {"steps": 6}}), Path(sys.argv[2]) / "whole", console=Screen())
assert timeless(here / "run") == timeless(Path(sys.argv[2]) / "whole")
assert last_tensors(here / "run") == last_tensors(Path(sys.argv[2]) / "whole")
print("done")
"""


def test_a_disk_that_fills_up_ends_the_run_with_one_sentence_and_it_goes_on_once_there_is_space(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir()
    large.mkdir()
    trial = [*MOUNT, "sh", str(small), "true"]
    if shutil.which("unshare") is None or subprocess.run(trial, check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a small disk (unshare)")
    program = [sys.executable, "-c", FULL_DISK, str(small), str(large)]
    done = subprocess.run(
        [*MOUNT, "sh", str(small), *program], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done"


class Forbidding(Screen):
    """Takes the folder of checkpoints away from the run before it saves; only a file can stand in for it under root."""

    folder: Path

    def phase(self, name: str) -> None:
        super().phase(name)
        if name == "saving" and self._progress.step == 4:
            self.folder.rename(self.folder.with_name("away"))
            self.folder.write_text("not a folder")


def test_checkpoints_that_cannot_be_written_end_the_run_with_one_sentence(tmp_path: Path) -> None:
    console = Forbidding()
    console.folder = tmp_path / "run" / "checkpoints"
    with pytest.raises(ValueError, match=r"^cannot write .*checkpoints"):
        run(tmp_path / "run", {"train": {"steps": 6}}, console=console)
    console.folder.unlink()
    console.folder.with_name("away").rename(console.folder)
    assert resume(tmp_path / "run", console=Screen())["status"] == "finished"
    run(tmp_path / "whole", {"train": {"steps": 6}})
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")
    assert last_tensors(tmp_path / "run") == last_tensors(tmp_path / "whole")


# Ctrl-C, as a shell sends it.


@contextmanager
def one_thread() -> Iterator[None]:
    """As in the process that was interrupted: with more, sums would be other sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "turnwise", *arguments, "--plain"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CI": ""}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_ctrl_c_finishes_the_step_saves_and_a_resume_ends_with_the_same_bits(tmp_path: Path) -> None:
    recipe = small_recipe({"train": {"steps": 30}, "checkpoint": {"every": 50}, "eval": {"episodes": 4}})
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    process = start("train", str(tmp_path / "recipe.yaml"), "--output", str(tmp_path / "run"))
    metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.is_file() and metrics.read_text().count("\n") >= 3):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    last = rows(tmp_path / "run")[-1]["step"]
    assert 3 <= last < 30
    assert f"Interrupted: step {last} is finished and saved." in output
    assert f"turnwise resume {tmp_path / 'run'}" in output
    assert RunFolder.open(tmp_path / "run").checkpoints.steps()[-1] == last
    with one_thread():
        assert resume(tmp_path / "run", console=Screen())["status"] == "finished"
        train(recipe, tmp_path / "whole", console=Screen())
    for journal in ("metrics", "turns", "evals"):
        assert timeless(tmp_path / "run", journal) == timeless(tmp_path / "whole", journal)
    assert last_tensors(tmp_path / "run") == last_tensors(tmp_path / "whole")
