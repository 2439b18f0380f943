"""`turnwise verify` passes what a run recorded, and names whatever was changed in it."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zstandard
from typer.testing import CliRunner

from tests.train.recorded_runs import make_run
from turnwise.audit.verify import CHECKS, StepCheck, verify_run
from turnwise.batch import TokenBatch
from turnwise.cli import app
from turnwise.rollout.packing import pack
from turnwise.runs import RunFolder, read_groups, read_rows, write_groups
from turnwise.types import Group, StopReason, Trajectory

Edit = Callable[[Callable[[Trajectory], None]], StepCheck]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("verify") / "run", model="nano", algorithm="reinforce")
    RunFolder.open(folder).checkpoints.remove(1)  # the weights that sampled step 2
    return folder


@pytest.fixture
def edit(run: Path) -> Iterator[Edit]:
    """Change a trajectory of step 3, and check the step; afterwards the file is as it was."""
    file = RunFolder.open(run).rollouts_file(3)
    before = file.read_bytes()

    def change(how: Callable[[Trajectory], None]) -> StepCheck:
        groups = read_groups(file)
        how(groups[0].trajectories[0])
        write_groups(file, groups)
        return next(verify_run(run, steps=[3]))

    yield change
    file.write_bytes(before)


def defects(check: StepCheck) -> dict[str, str]:
    return {finding.check: finding.text for finding in check.defects}


def test_a_sound_run_has_no_defect_and_gaps_of_rounding_alone(run: Path) -> None:
    checks = list(verify_run(run))
    assert [(check.step, check.ok, check.episodes) for check in checks] == [(1, True, 8), (2, True, 8), (3, True, 8)]
    for check in (checks[0], checks[2]):
        assert check.gap is not None
        assert 0 < check.gap.mean < 1e-5
        assert [finding.verdict for finding in check.findings] == ["pass"] * 4


def test_without_the_weights_that_sampled_the_other_checks_are_done_and_this_is_said(run: Path) -> None:
    assert RunFolder.open(run).checkpoints.steps() == [0, 2, 3]
    [check] = verify_run(run, steps=[2])
    assert check.ok
    assert check.gap is None
    assert [(finding.check, finding.verdict) for finding in check.findings] == [
        ("tokens", "pass"),
        ("masks", "pass"),
        ("versions", "pass"),
        ("gap", "note"),
    ]
    assert check.findings[3].text == "the weights that sampled are not kept"


def test_a_sampled_id_that_is_not_the_one_recorded_is_found(edit: Edit) -> None:
    def other_id(trajectory: Trajectory) -> None:
        trajectory.turns[0].sampled_ids = [trajectory.turns[0].sampled_ids[0] + 1, *trajectory.turns[0].sampled_ids[1:]]

    found = defects(edit(other_id))
    assert "turn 0: the sampled ids spell" in found["tokens"]
    assert "gap" in found


def test_a_prompt_that_does_not_continue_what_was_there_is_found(edit: Edit) -> None:
    def shorter(trajectory: Trajectory) -> None:
        trajectory.turns[1].prompt_ids = trajectory.turns[1].prompt_ids[1:]

    assert "turn 1: prompt tokens differ from the rendered observation at token 0" in defects(edit(shorter))["tokens"]


def test_a_prompt_token_moved_among_the_sampled_ones_is_found(edit: Edit) -> None:
    def shifted(trajectory: Trajectory) -> None:
        turn = trajectory.turns[0]
        assert turn.logprobs is not None
        turn.sampled_ids, turn.prompt_ids = [turn.prompt_ids[-1], *turn.sampled_ids], turn.prompt_ids[:-1]
        turn.logprobs = [0.0, *turn.logprobs]

    found = defects(edit(shifted))
    assert "prompt tokens differ" in found["tokens"]
    assert "turn 0, token " in found["masks"]
    assert "the ledger counts as sampled a token that the environment wrote" in found["masks"]
    assert "shifted mask" in found["gap"]


def test_a_sampled_token_moved_into_the_prompt_is_found(edit: Edit) -> None:
    def shifted(trajectory: Trajectory) -> None:
        turn = trajectory.turns[1]
        assert turn.logprobs is not None
        turn.prompt_ids, turn.sampled_ids = [*turn.prompt_ids, turn.sampled_ids[0]], turn.sampled_ids[1:]
        turn.logprobs = turn.logprobs[1:]

    found = defects(edit(shifted))["masks"]
    assert "turn 1, token " in found
    assert "not among those that the ledger counts as sampled (1 wrong tokens in this trajectory)" in found


def shift_spans(row: dict[str, Any]) -> None:
    row["spans"] = [[start - 1, end - 1] for start, end in row["spans"]]


def swap_first_ids(row: dict[str, Any]) -> None:
    row["ids"] = [row["ids"][0] + 1, *row["ids"][1:]]


def forget_last_token(row: dict[str, Any]) -> None:
    row["spans"][-1][1] -= 1
    row["ids"].pop()


def name_another(row: dict[str, Any]) -> None:
    row["id"] = "step-3/task-9999/0"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (shift_spans, "turn 0, token .*: the step trained on a token that the environment wrote"),
        (swap_first_ids, r"turn 0, token .*: the step trained on id \d+, and the policy sampled id \d+"),
        (forget_last_token, "the policy sampled this token, and it is not among those that the step trained on"),
        (name_another, "the step trained on trajectory 'step-3/task-9999/0', which is not among the episodes"),
        (lambda row: row.pop("ids"), "a line of the token ledger has no valid spans and ids"),
    ],
)
def test_a_wrong_mask_in_what_a_step_wrote_of_its_tokens_is_found(
    run: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    file = RunFolder.open(run).tokens_file(3)
    before = file.read_bytes()
    rows = list(read_rows(file))
    change(rows[0])
    file.write_bytes(zstandard.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows)))
    [check] = verify_run(run, steps=[3])
    file.write_bytes(before)
    found = defects(check)
    assert list(found) == ["masks"]
    assert re.search(said, found["masks"])


def test_a_packing_that_masks_the_wrong_tokens_is_found(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(groups: Sequence[Group], *, policy: str) -> TokenBatch:
        batch = pack(groups, policy=policy)
        return batch.with_(turn_T=batch.turn_T.roll(-1))

    monkeypatch.setattr("turnwise.audit.verify.pack", shifted)
    [check] = verify_run(run, steps=[2])  # its weights are not kept, so no log-prob can tell
    assert "the packed batch trains on a token that the environment wrote" in defects(check)["masks"]


def test_logprobs_of_the_neighbouring_token_are_found(edit: Edit) -> None:
    def shifted(trajectory: Trajectory) -> None:
        for turn in trajectory.turns:
            assert turn.logprobs is not None
            turn.logprobs = [*turn.logprobs[1:], turn.logprobs[0]]

    found = defects(edit(shifted))
    assert list(found) == ["gap"]
    assert "sampler and trainer disagree" in found["gap"]


def test_as_many_logprobs_as_sampled_ids_are_asked_for(edit: Edit) -> None:
    def fewer(trajectory: Trajectory) -> None:
        assert trajectory.turns[0].logprobs is not None
        trajectory.turns[0].logprobs = trajectory.turns[0].logprobs[1:]

    assert "sampled ids but" in defects(edit(fewer))["masks"]


def test_turns_of_another_version_are_found_and_do_not_fit_its_weights(edit: Edit) -> None:
    def stale(trajectory: Trajectory) -> None:
        for turn in trajectory.turns:
            turn.policy_version = 0

    found = defects(edit(stale))
    assert "may learn from versions 2 to 2" in found["versions"]
    assert "sampler and trainer disagree" in found["gap"]


def test_episodes_that_failed_are_checked_and_must_not_be_trained_on(run: Path, edit: Edit) -> None:
    def failed(trajectory: Trajectory) -> None:
        trajectory.stop = StopReason.ENV_ERROR

    assert defects(edit(failed)) == {
        "masks": "the step trained on trajectory 'step-3/task-16/0', which is not among the episodes to learn from"
    }
    tokens = RunFolder.open(run).tokens_file(3)
    before = tokens.read_bytes()
    tokens.unlink()
    [check] = verify_run(run, steps=[3])
    tokens.write_bytes(before)
    assert check.ok
    assert check.episodes == 8


def test_a_file_that_was_cut_off_is_a_defect_of_its_step_alone(run: Path, edit: Edit) -> None:
    file = RunFolder.open(run).rollouts_file(3)
    file.write_bytes(file.read_bytes()[:-20])
    first, _, third = verify_run(run)
    assert first.ok
    assert "truncated" in defects(third)["tokens"]


def test_steps_are_chosen_by_number_or_from_the_end(run: Path) -> None:
    assert [check.step for check in verify_run(run, steps=[3, 1])] == [3, 1]
    assert [check.step for check in verify_run(run, last=2)] == [2, 3]
    with pytest.raises(ValueError, match=r"no trajectories of step 9; it has those of step 1-3"):
        verify_run(run, steps=[1, 9])


def test_overlapped_runs_are_measured_but_not_judged(tmp_path: Path) -> None:
    changes = {"algorithm": {"preset": "ppo", "max_lag": 1}, "train": {"steps": 2, "learning_rate": 5e-4}}
    checks = list(verify_run(make_run(tmp_path / "run", **changes)))
    assert [check.ok for check in checks] == [True, True]
    assert "not judged" in checks[0].findings[3].text


def test_the_command_shows_a_table_and_its_exit_code_tells_of_defects(run: Path, edit: Edit) -> None:
    done = CliRunner().invoke(app, ["verify", str(run)])
    assert done.exit_code == 0
    assert "note, step 2, gap: the weights that sampled are not kept" in done.output
    assert done.output.endswith("3 steps checked: no defect\n")

    def other_action(trajectory: Trajectory) -> None:
        trajectory.turns[0].action = "\x1b[2J"

    edit(other_action)
    done = CliRunner().invoke(app, ["verify", str(run), "--last", "2"])
    assert done.exit_code == 1
    assert "defect, step 3, tokens: trajectory 'step-3/task-16/0', turn 0" in done.output
    assert "\x1b[2J" not in done.output
    done = CliRunner().invoke(app, ["verify", str(run), "--steps", "3", "--json"])
    assert done.exit_code == 1
    [row] = json.loads(done.output)
    assert (row["step"], row["ok"], row["checks"]["tokens"]["verdict"]) == (3, False, "defect")


def test_the_table_fits_on_sixty_columns(run: Path) -> None:
    lines = CliRunner().invoke(app, ["verify", str(run), "--steps", "3"], env={"COLUMNS": "60"}).output.splitlines()
    assert lines[0].split() == ["step", "episodes", "sampled", *CHECKS]
    assert re.fullmatch(r" +3 +8 +\d+ pass +pass +pass +pass \d\.\de-0\d *", lines[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "3,x"], "give numbers with commas"),
        (["--steps", "3", "--last", "1"], "give only one"),
    ],
)
def test_mistakes_get_one_message(run: Path, options: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["verify", str(run), *options])
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_folder_without_trajectories_says_how_to_have_some(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", train={"steps": 1}, log={"rollouts": 0})
    done = CliRunner().invoke(app, ["verify", str(run)])
    assert done.exit_code == 2
    assert "has no trajectories on disk; train with log.rollouts=1" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_ledger_of_a_real_run_holds_more_than_one_version(run: Path) -> None:
    """What the tests above rest on: consecutive steps were sampled by consecutive versions."""
    folder = RunFolder.open(run)
    versions = [
        read_groups(folder.rollouts_file(step))[0].trajectories[0].turns[0].policy_version for step in (1, 2, 3)
    ]
    assert all(later == earlier + 1 for earlier, later in pairwise(versions))
