"""A whole study in small: starts, runs, controls that take over what other runs did, and going on where it was."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.reproduce.tiny import GUESS_CLAIM, TASKS, write_claim
from tests.study.test_processes import lives, wait_until
from turnwise.cli import app
from turnwise.reproduce.claim import load_claim
from turnwise.reproduce.claim_study import RESULTS, Study, keep_numbers_only
from turnwise.reproduce.conclusion import conclude
from turnwise.reproduce.plan import mean_scale
from turnwise.runs.checkpoints import Checkpoints
from turnwise.runs.folder import RunFolder
from turnwise.runs.journal import read_journal
from turnwise.runs.reading import is_complete
from turnwise.study.jobs import StudyQueue


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    claim = load_claim(str(write_claim(folder / "tiny")))
    made = Study(claim, "cpu", folder / "output")
    assert made.run(jobs=1, report=lambda text: None) == {}
    return made


def folder_of(study: Study, arm: str, **cell):
    return next(
        run.folder(study.output)
        for run in study.runs
        if run.cell.arm == arm and all(getattr(run.cell, name) == value for name, value in cell.items())
    )


def recipe_of(study: Study, arm: str, **cell):
    return yaml.safe_load((folder_of(study, arm, **cell) / "config.yaml").read_text())


def test_every_run_is_complete_and_keeps_numbers_only(study):
    assert len(study.runs) == 5
    for run in study.runs:
        folder = run.folder(study.output)
        assert is_complete(folder)
        assert not (folder / "checkpoints").exists()


def test_all_arms_start_from_the_one_imitation_of_their_seed(study):
    models = {recipe_of(study, run.cell.arm)["model"]["name"] for run in study.runs}
    assert models == {str(study.output / "start" / "seed-0" / "checkpoints" / "step_000048")}
    starts = {row["start"] for row in study.results()}
    assert len(starts) == 1


def test_the_rate_of_several_policies_is_found_under_their_names(study, tmp_path):
    copied = Study(study.claim, "cpu", shutil.copytree(study.output, tmp_path / "output"))
    for run in copied.runs:
        metrics = run.folder(copied.output) / "metrics.jsonl"
        metrics.write_text(metrics.read_text().replace('"train/learning_rate"', '"pioneer/train/learning_rate"'))
    rates = [[row["applied_rate"] for row in each.results()] for each in (study, copied)]
    assert rates[0] == rates[1] != [None] * len(rates[0])


def test_the_success_of_several_policies_is_their_mean_where_they_have_no_common_one(study, tmp_path):
    copied = Study(study.claim, "cpu", shutil.copytree(study.output, tmp_path / "output"))
    for run in copied.runs:
        evals = run.folder(copied.output) / "evals.jsonl"
        rows = [json.loads(line) for line in evals.read_text().splitlines()]
        named = [{"step": row["step"], "a/eval/success": row["eval/success"], "b/eval/success": 0.0} for row in rows]
        evals.write_text("".join(json.dumps(row) + "\n" for row in named))
    finals = [[row["final"] for row in each.results()] for each in (study, copied)]
    assert finals[1] == pytest.approx([final / 2 for final in finals[0]])
    assert all(
        row["last"]["a/eval/success"] / 2 == pytest.approx(row["last"]["eval/success"]) for row in copied.results()
    )


def test_the_matched_control_learns_at_the_rate_that_the_method_really_had(study):
    scale = mean_scale(folder_of(study, "st-ppo"))
    assert 0 < scale < 1
    assert recipe_of(study, "matched")["train"]["learning_rate"] == pytest.approx(2e-2 * scale)


def test_the_permuted_control_replays_the_same_factors_in_another_order(study):
    factors = json.loads((folder_of(study, "st-ppo") / "factors.json").read_text())
    replayed = recipe_of(study, "permuted")["algorithm"]["scale"]["factors"]
    assert len(factors) == 2 * 4
    assert sorted(replayed) == sorted(factors)
    applied = [row["train/scale"] for row in read_journal(folder_of(study, "permuted") / "metrics.jsonl")]
    assert applied == [pytest.approx(sum(replayed[start : start + 4]) / 4) for start in (0, 4)]


def test_updates_are_whole_passes_and_half_the_epochs_are_half(study):
    made = {run.cell: recipe_of(study, run.cell.arm, updates=run.cell.updates)["algorithm"] for run in study.runs}
    passes = {(cell.arm, cell.updates): (row["epochs"], row["minibatches"]) for cell, row in made.items()}
    assert passes["st-ppo", 4] == (2, 2)
    assert passes["ppo", 1] == (1, 1)
    assert passes["half", 4] == (1, 2)


def test_a_second_call_runs_nothing(study):
    said = []
    assert study.run(jobs=1, report=said.append) == {}
    assert said == []


def test_the_conclusion_is_written_from_results_alone(study):
    rows = study.write_results()
    assert json.loads((study.output / RESULTS).read_text()) == rows
    findings = conclude(study.claim, study.scale, rows, study.output)
    assert len(findings) == 2  # the controls: the baseline has no runs under stress
    text = (study.output / "verdict.md").read_text()
    assert text.startswith("# A tiny paper: ")


def test_a_run_with_other_settings_is_not_mixed_in(study):
    cut = folder_of(study, "half", updates=4)
    events = cut / "events.jsonl"
    kept, config = events.read_bytes(), (cut / "config.yaml").read_text()
    try:
        events.write_bytes(b"")
        (cut / "config.yaml").write_text(config.replace("episodes: 16", "episodes: 4", 1))
        with pytest.raises(ValueError, match="other settings"):
            study.run(jobs=1, report=lambda text: None)
    finally:
        events.write_bytes(kept)
        (cut / "config.yaml").write_text(config)


@pytest.mark.parametrize("begun", [False, True])
def test_a_start_with_other_settings_is_not_used(study, begun):
    start = study.output / "start" / "seed-0"
    kept, config = (start / "events.jsonl").read_bytes(), (start / "config.yaml").read_text()
    try:
        if begun:
            (start / "events.jsonl").write_bytes(b"")
        (start / "config.yaml").write_text(config.replace("demonstrations: 512", "demonstrations: 256"))
        with pytest.raises(ValueError, match=r"sft\.demonstrations: 256 → 512"):
            study.run(jobs=1, report=lambda text: None)
    finally:
        (start / "events.jsonl").write_bytes(kept)
        (start / "config.yaml").write_text(config)


def test_an_arm_may_begin_from_the_model_itself(study):
    (run, *_) = study.runs
    plain = study.claim.arms[run.cell.arm].model_copy(update={"from_start": False})
    claim = study.claim.model_copy(update={"arms": {**study.claim.arms, run.cell.arm: plain}})
    planned = [Study(each, "cpu", study.output).planned() for each in (study.claim, claim)]
    models = [{made.name: made.make_recipe().model.name for made in runs}[run.name] for runs in planned]
    assert models[0].startswith(str(study.output))
    assert models[1] == "pico-0"


def test_a_control_waits_for_the_run_whose_scales_it_takes_over(study, tmp_path):
    again = Study(study.claim, "cpu", tmp_path / "again")
    shutil.copytree(study.output / "start", again.output / "start")
    order = []
    queue = StudyQueue(again.planned())
    while task := queue.take():
        order.append(task.name.split()[0])
    # The source comes first though the claim names it third; its controls need it to be complete.
    assert order == ["st-ppo", "half", "ppo"]
    assert len(queue) == 2
    source = folder_of(study, "st-ppo")
    shutil.copytree(source, folder_of(again, "st-ppo"))
    assert [task.name.split()[0] for task in iter(queue.take, None)] == ["matched", "permuted"]


def test_factors_are_written_once_even_where_an_older_checkpoint_is_left(tmp_path):
    for factors in ([0.5, 0.25], [0.5]):
        state = json.dumps({"learners": {"policy": {"scale": {"factors": factors}}}})

        def fill(folder, state=state):
            (folder / "resume").mkdir()
            (folder / "resume" / "state.json").write_text(state)

        Checkpoints(tmp_path / "checkpoints").write(len(factors), fill)
        keep_numbers_only(tmp_path)
        assert json.loads((tmp_path / "factors.json").read_text()) == [0.5, 0.25]
        assert not (tmp_path / "checkpoints").exists()


def test_the_command_concludes_from_what_is_there(study):
    arguments = ["reproduce", str(study.claim.folder), "--output", str(study.output), "--verdict", "--watch"]
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    assert "5 of 5 runs are complete" in answer.output
    assert "st-ppo beats permuted" in answer.output
    assert "watching" not in answer.output  # nothing runs, so a page would end at once


def test_a_claim_in_criteria_runs_from_its_start_to_its_verdict(tmp_path):
    folder, output = write_claim(tmp_path / "guess", GUESS_CLAIM), tmp_path / "output"
    answer = CliRunner().invoke(app, ["reproduce", str(folder), "--output", str(output), "--jobs", "1"])
    assert answer.exit_code == 0, answer.output
    assert "2 of 2 runs are complete" in answer.output
    assert "A: success of rebn at least 0.95" in answer.output
    rows = {row["arm"]: row for row in json.loads((output / RESULTS).read_text())}
    for run in Study(load_claim(str(folder)), "cpu", output).runs:
        last = read_journal(run.folder(output) / "evals.jsonl")[-1]
        row = rows[run.cell.arm]
        assert (row["final_turns"], row["final_reward"]) == (last["eval/turns"], last["eval/reward"])
        assert 1 < row["final_turns"] <= 6
    text = (output / "verdict.md").read_text()
    assert text.startswith("# A guessing paper: A not decided, B not decided")
    assert "| A: success of rebn at least 0.95 | not decided | too few seeds: 1 of" in text
    assert not (output / "rates.svg").exists()


def test_a_scale_with_several_tasks_runs_and_judges_each_by_itself(tmp_path):
    folder, output = write_claim(tmp_path / "guess", GUESS_CLAIM.rstrip() + TASKS), tmp_path / "output"
    study = Study(load_claim(str(folder)), "cpu", output)
    assert [(run.task, run.cell.arm) for run in study.runs] == [
        (task, arm) for task in ("few", "more") for arm in ("rebn", "undiscounted")
    ]
    assert study.run(jobs=1, report=lambda text: None) == {}
    configs = {run: yaml.safe_load((run.folder(output) / "config.yaml").read_text()) for run in study.runs}
    assert {
        (run.task, each["env"]["kwargs"]["high"], each["train"]["learning_rate"]) for run, each in configs.items()
    } == {
        ("few", 2, 1e-3),
        ("more", 4, 3e-3),
    }
    assert {each["model"]["name"].split("/")[-4:-2][0] for each in configs.values()} == {"few", "more"}
    findings = conclude(study.claim, study.scale, study.write_results(), output)
    assert {finding.part for finding in findings} == {"A few", "B few", "A more", "B more"}
    text = (output / "verdict.md").read_text()
    assert "4 of 4 runs are complete" in text
    assert "| success | few | more |" in text
    assert "| undiscounted | " in text
    assert "## more, claims" in text


def test_a_study_that_is_told_to_end_takes_its_processes_with_it(tmp_path):
    folder, output = write_claim(tmp_path / "tiny"), tmp_path / "output"
    command = [sys.executable, "-m", "turnwise", "reproduce", str(folder), "--jobs", "1", "--output", str(output)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert any("to do, starts included" in line for line in process.stdout)
        start = output / "start" / "seed-0" / "metrics.jsonl"
        assert wait_until(lambda: start.is_file() and start.stat().st_size > 0, 300)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert children
        process.send_signal(signal.SIGTERM)  # to it alone, as a scheduler of jobs does
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "run the same command to continue" in said
    assert wait_until(lambda: not any(lives(int(child)) for child in children))
    assert not is_complete(start.parent)
    assert RunFolder.open(start.parent).checkpoints.latest() is not None
