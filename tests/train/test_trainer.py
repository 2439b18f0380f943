"""The loop around the learner: checkpoints it can go back to, references that are renewed, and runs that carry on."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.small_runs import LostMachineError, Screen, Stopping, last_tensors, rows, run, tensors, timeless
from turnwise.policy.text import TextPolicy
from turnwise.runs import read_groups
from turnwise.runs.folder import RunFolder
from turnwise.train import setup
from turnwise.train.stages import resume
from turnwise.train.state import read_state

KL: dict[str, Any] = {"preset": "rebn", "epochs": 1, "regularizers": [{"kind": "kl", "coef": 0.05}]}


def test_a_run_leaves_one_row_a_step_and_a_checkpoint_where_one_is_due(tmp_path: Path) -> None:
    summary = run(tmp_path / "run", {"train": {"steps": 5}, "checkpoint": {"keep": 9}, "eval": {"episodes": 4}})
    assert (summary["status"], summary["step"]) == ("finished", 5)
    assert [row["step"] for row in rows(tmp_path / "run")] == [1, 2, 3, 4, 5]
    assert [row["step"] for row in rows(tmp_path / "run", "evals")] == [0, 5]
    assert RunFolder.open(tmp_path / "run").checkpoints.steps() == [0, 2, 4, 5]
    assert RunFolder.open(tmp_path / "run").rollout_steps() == [1, 2, 3, 4, 5]
    assert rows(tmp_path / "run", "events")[-1]["kind"] == "finished"


class Reading(Screen):
    """Reads the newest ledger when learning from it begins; may break off there, as a lost machine would."""

    def __init__(self, folder: Path, *, lost_at: int | None = None) -> None:
        super().__init__()
        self.folder, self.lost_at = folder, lost_at
        self.ledgers: dict[str, bytes] = {}

    def phase(self, name: str) -> None:
        super().phase(name)
        if name == "learning":
            newest = max((self.folder / "rollouts").glob("step_*"))
            self.ledgers[newest.name] = newest.read_bytes()
            if len(self.ledgers) == self.lost_at:
                raise LostMachineError


def test_episodes_can_be_read_before_they_are_learnt_from_and_learning_changes_nothing_in_them(tmp_path: Path) -> None:
    reading = Reading(tmp_path / "run")
    run(tmp_path / "run", {"train": {"steps": 3}}, console=reading)
    kept = {file.name: file.read_bytes() for file in (tmp_path / "run/rollouts").glob("step_*")}
    assert len(kept) == 3
    assert reading.ledgers == kept
    with pytest.raises(LostMachineError):
        run(tmp_path / "lost", {"train": {"steps": 3}}, console=Reading(tmp_path / "lost", lost_at=3))
    assert [row["step"] for row in rows(tmp_path / "lost")] == [1, 2]
    assert RunFolder.open(tmp_path / "lost").rollout_steps() == [1, 2, 3]  # no journal knows of the last
    resume(tmp_path / "lost", console=Screen())
    again = {step: read_groups(RunFolder.open(tmp_path / "lost").rollouts_file(step)) for step in (1, 2, 3)}
    assert [[each.id for each in groups] for groups in again.values()] == [
        [each.id for each in read_groups(RunFolder.open(tmp_path / "run").rollouts_file(step))] for step in (1, 2, 3)
    ]
    assert timeless(tmp_path / "lost") == timeless(tmp_path / "run")
    assert last_tensors(tmp_path / "lost") == last_tensors(tmp_path / "run")


def test_held_out_episodes_are_written_down_with_each_evaluation_unless_nothing_is(tmp_path: Path) -> None:
    run(tmp_path / "run", {"train": {"steps": 2}, "eval": {"episodes": 20}})
    folder = RunFolder.open(tmp_path / "run")
    assert folder.evaluation_steps() == [0, 2]
    assert len(read_groups(folder.evaluation_file(2))) == 16
    run(tmp_path / "bare", {"train": {"steps": 1}, "eval": {"episodes": 2}, "log": {"rollouts": 0}})
    assert RunFolder.open(tmp_path / "bare").evaluation_steps() == []


def test_old_checkpoints_go_but_the_best_and_the_last_good_one_stay(tmp_path: Path) -> None:
    run(tmp_path / "run", {"train": {"steps": 9}, "checkpoint": {"every": 1, "keep": 1}})
    # Three healthy steps make a checkpoint good: that is 6. Those of 7 and 8 may yet become good.
    assert RunFolder.open(tmp_path / "run").checkpoints.steps() == [0, 6, 7, 8, 9]


class Poisoned(Screen):
    """Fills a weight with NaN before a step: it must be undone."""

    def __init__(self, *, before: int) -> None:
        super().__init__()
        self.before = before
        self.policy: TextPolicy | None = None

    def phase(self, name: str) -> None:
        super().phase(name)
        self.before -= name == "playing"
        if name == "playing" and self.before == 0:
            assert self.policy is not None
            with torch.no_grad():
                next(iter(self.policy.trainable().values())).fill_(float("nan"))


@pytest.mark.parametrize("every", [1, 2, 5])
def test_broken_weights_are_replaced_by_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    console = Poisoned(before=8)
    _give_policy(monkeypatch, console)
    recipe = {"algorithm": "ppo", "train": {"steps": 10}, "checkpoint": {"every": every, "keep": 1}}
    assert run(tmp_path / "run", recipe, console=console)["status"] == "finished"
    (incident,) = [event for event in rows(tmp_path / "run", "events") if event["kind"] == "guard"]
    assert (incident["step"], incident["signal"], incident["action"]) == (8, "non-finite", "restore")
    assert incident["change"] == "learning rate × 0.2"
    good = {1: 4, 2: 4, 5: 0}[every]  # three healthy steps have followed step 4, and two step 5
    assert f"restoring the state of step {good}" in console.text
    rates = [row.get("train/learning_rate") for row in rows(tmp_path / "run")]
    assert rates == pytest.approx([5e-3] * 7 + [None] + [1e-3] * 2)


def test_broken_weights_end_a_run_that_nobody_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Poisoned(before=4)
    _give_policy(monkeypatch, console)
    with pytest.raises(ValueError, match="nan"):
        run(tmp_path / "run", {"train": {"steps": 6}, "guard": "off", "checkpoint": {"every": 3}}, console=console)
    assert RunFolder.open(tmp_path / "run").checkpoints.latest() is not None


def _give_policy(monkeypatch: pytest.MonkeyPatch, console: Poisoned) -> None:
    """Let the console know the policy that is trained."""

    load = setup.load_policy

    def load_and_tell(*arguments: Any, **options: Any) -> TextPolicy:
        console.policy = policy = load(*arguments, **options)
        return policy

    monkeypatch.setattr(setup, "load_policy", load_and_tell)


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["full", "adapter"])
def test_a_reference_is_renewed_every_so_many_steps(tmp_path: Path, lora: Any) -> None:
    if lora:
        pytest.importorskip("peft", reason="needs turnwise[lora]")
    model = {"name": "pico", "lora": lora}
    for name, every in (("kept", None), ("renewed", 2)):
        train = {"steps": 5, "reference_every": every, "learning_rate": 2e-2}
        run(tmp_path / name, {"algorithm": KL, "model": model, "train": train})
    kept, renewed = ([row["loss/reference_kl"] for row in rows(tmp_path / name)] for name in ("kept", "renewed"))
    # Steps 3 and 5 start from the policy that the reference has just become.
    assert [value < 1e-6 for value in renewed] == [True, False, True, False, True]
    assert [value < 1e-6 for value in kept] == [True, False, False, False, False]


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["full", "adapter"])
def test_a_resumed_run_has_the_reference_that_it_had(tmp_path: Path, lora: Any) -> None:
    if lora:
        pytest.importorskip("peft", reason="needs turnwise[lora]")
    recipe = {
        "algorithm": KL,
        "model": {"name": "pico", "lora": lora},
        "train": {"steps": 7, "reference_every": 3, "learning_rate": 2e-2},
        "checkpoint": {"every": 4, "keep": 1},
    }
    run(tmp_path / "whole", recipe)
    with pytest.raises(LostMachineError):
        run(tmp_path / "cut", recipe, console=Stopping(after=5))
    assert RunFolder.open(tmp_path / "cut").checkpoints.steps() == [0, 3, 4]
    assert run(tmp_path / "cut")["status"] == "finished"
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    assert last_tensors(tmp_path / "cut") == last_tensors(tmp_path / "whole")


def test_a_restored_run_gives_up_a_reference_that_is_younger_than_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Poisoned(before=7)
    _give_policy(monkeypatch, console)
    recipe = {
        "algorithm": KL,
        "train": {"steps": 8, "reference_every": 6, "learning_rate": 2e-2},
        "checkpoint": {"every": 3},
    }
    run(tmp_path / "run", recipe, console=console)
    assert "restoring the state of step 3" in console.text
    assert rows(tmp_path / "run")[7]["loss/reference_kl"] < 1e-6  # it is the restored policy itself


def test_a_finished_run_can_be_made_longer(tmp_path: Path) -> None:
    run(tmp_path / "long", {"train": {"steps": 6}})
    run(tmp_path / "short", {"train": {"steps": 4}})
    assert resume(tmp_path / "short", console=Screen(), overrides={"train": {"steps": 6}})["step"] == 6
    assert timeless(tmp_path / "short") == timeless(tmp_path / "long")
    assert last_tensors(tmp_path / "short") == last_tensors(tmp_path / "long")


def test_a_checkpoint_without_its_critic_is_never_written(tmp_path: Path) -> None:
    run(tmp_path / "run", {"algorithm": "st-ppo"})
    names = set(tensors(tmp_path / "run" / "checkpoints" / "step_000004"))
    assert names == {"model.safetensors"} | {
        f"resume/{name}.safetensors" for name in ("critic", "critic_optimizer", "optimizer")
    }


def test_an_older_checkpoint_finds_what_it_names_when_the_newest_is_damaged(tmp_path: Path) -> None:
    recipe = {"algorithm": KL, "train": {"steps": 6, "reference_every": 2}, "checkpoint": {"every": 1, "keep": 3}}
    run(tmp_path / "run", recipe)
    checkpoints = RunFolder.open(tmp_path / "run").checkpoints
    for step in (6, 5, 4):
        assert read_state(checkpoints.at(step))["policies"]["policy"]["standing"]["reference"] in checkpoints.steps()
    (checkpoints.at(6) / "model.safetensors").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="step_000006 is skipped"):
        assert run(tmp_path / "run")["step"] == 6
