"""Training from the command line: what it says, what it leaves, and its exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.report.runs import write_run
from turnwise.cli import app, watching
from turnwise.cli.training import new_folder
from turnwise.envs.task_lists import TaskList
from turnwise.runs import read_journal

SMALL = [
    *("env=game/guess-number-easy", "rollout.episodes=4", "rollout.max_turns=2", "rollout.max_tokens=6"),
    *("eval.episodes=2", "env.check=false", "engine.memory_gib=0.02", "rollout.context=256", "algorithm=reinforce"),
]
"""The shipped model, and hardly anything to do."""

BROKEN = """
from turnwise.envs import Env

class Broken(Env):
    def reset(self, seed=None, task=None):
        raise RuntimeError("the server is down")
"""


def turnwise(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder of its own, and no word of CI."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command adds the folder it is run in
    return tmp_path


def test_train_then_resume_then_evaluate(here):
    trained = turnwise("train", *SMALL, "name=tiny", "train.steps=1")
    assert trained.exit_code == 0, trained.output
    assert "step 1/1  success " in trained.stdout
    assert "Finished 1 step.\n" in trained.stdout
    assert "train further  turnwise resume runs/tiny train.steps=2" in trained.stdout
    assert yaml.safe_load(Path("runs/tiny/config.yaml").read_text())["rollout"]["episodes"] == 4

    resumed = turnwise("resume", "runs/tiny", "train.steps=2", "--quiet")
    assert resumed.exit_code == 0, resumed.output
    assert resumed.stdout.startswith("Finished 2 steps.\nheld-out success ")
    assert len(resumed.stdout.splitlines()) == 3
    assert [row["step"] for row in read_journal(Path("runs/tiny/metrics.jsonl"))] == [1, 2]

    for model in ("runs/tiny", "runs/tiny/checkpoints/step_000002"):
        evaluated = turnwise("eval", model, "--episodes", "3", "--temperature", "0", "--json")
        assert evaluated.exit_code == 0, evaluated.output
        assert json.loads(evaluated.stdout)["eval/episodes"] == 3
    first = turnwise("eval", "runs/tiny", "--step", "1", "--episodes", "2")
    assert "runs/tiny/checkpoints/step_000001" in first.stdout, first.output
    assert "runs/tiny has no checkpoint of step 7; it has " in turnwise("eval", "runs/tiny", "--step", "7").stderr
    table = turnwise("eval", "nano", *SMALL, "--episodes", "2", "--tries", "2", "--show", "1").stdout
    assert "pass@2" in table
    assert table.count("held-out task") == 1

    again = turnwise("train", *SMALL, "--output", "runs/tiny")
    assert (again.exit_code, "continue with `turnwise resume runs/tiny`" in again.stderr) == (2, True)

    further = turnwise("train", *SMALL, "name=tiny", "model=runs/tiny", "train.steps=1", "--quiet")
    assert further.exit_code == 0, further.output
    written = yaml.safe_load(Path("runs/tiny-2/config.yaml").read_text())
    assert written["model"]["name"] == "runs/tiny/checkpoints/step_000002"
    assert written["train"]["learning_rate"] == 3e-4  # it is nano all the same


def test_a_run_says_where_it_can_be_watched(here, monkeypatch):
    monkeypatch.setattr(watching, "_START_SECONDS", 600.0)  # the machine may be busy
    trained = turnwise("train", *SMALL, "name=seen", "train.steps=1", "--quiet", "--watch")
    assert trained.exit_code == 0, trained.output
    first = trained.stdout.splitlines()[0]
    assert re.fullmatch(r"watching runs/seen at http://127\.0\.0\.1:\d+", first), trained.stdout
    assert "did not start" not in trained.stderr


def test_without_output_a_run_gets_a_free_name(here):
    taken = [Path("runs/mine"), Path("runs/mine-2")]
    for folder in taken:
        folder.mkdir(parents=True)
        (folder / "notes.txt").write_text("dear diary")
    assert new_folder(None, default=Path("runs/mine")) == Path("runs/mine-3")
    assert new_folder(None, default=Path("runs/other")) == Path("runs/other")


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/../../x", "", "a//b", ".", "a\x1b"])
def test_a_name_never_leads_out_of_the_folder_of_runs(here, name):
    refused = turnwise("train", *SMALL, f"name={json.dumps(name)}")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "it must be a folder inside runs/" in refused.stderr
    assert list(here.iterdir()) == []


def test_nothing_is_overwritten(here):
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/notes.txt").write_text("dear diary")
    refused = turnwise("train", *SMALL, "--output", "runs/mine")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "runs/mine is not empty" in refused.stderr
    assert "resume" not in refused.stderr  # there is no run to carry on with
    assert "--output" in refused.stderr
    assert [path.name for path in Path("runs/mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval", "runs"], "runs is not a model: it is a folder of runs: name one of runs/mine"),
        (["eval", "runs/mime"], "there is no folder runs/mime; did you mean runs/mine?"),
        (["resume", "runs/mime"], "did you mean runs/mine?"),
        (
            ["compare", "runs/mine", "ppo"],
            "see runs side by side with `turnwise report runs/",
        ),
    ],
)
def test_what_is_not_the_run_that_was_meant_is_answered_with_it(arguments, message, here):
    write_run(here / "runs" / "mine", steps=1)
    result = turnwise(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert message in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "missing.yaml"], "there is no recipe missing.yaml"),
        (["train", "recipes/own-task.yaml"], "did you mean recipes/own-tasks.yaml?"),
        (["train", "train.stepps=3"], "did you mean train.steps?"),
        (["train", "train.steps=0"], "train.steps is 0"),
        (["train", "steps"], "there is no recipe steps"),
        (["train", "env=search/geo-2hopp"], "did you mean search/geo-2hop"),
        (["train", "algorithm=stppo"], "did you mean 'st-ppo'?"),
        (["train", "model=./missing", *SMALL], "./missing"),
        (["train", "device=cuda:7", *SMALL], "device"),
        (["sft", "sft.epochs=none"], "sft.epochs"),
        (["resume", "runs/none"], "runs/none is not a run folder"),
        (["eval", "./none"], "there is no folder ./none"),
        (["eval", "nano", "--env", "search/none"], "unknown environment 'search/none'"),
        (["eval", "nano", "--step", "3"], "nano is not a run folder, so it has no steps; leave --step out"),
        (["eval", "oracle"], "oracle has no environment of its own; say where to play, such as --env"),
        (["test-agent", "random"], "random is a scripted player, not a model; `turnwise eval random --env ENV`"),
    ],
)
def test_mistakes_get_one_message_exit_code_two_and_leave_nothing(arguments, message, here):
    result = turnwise(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("turnwise: ")
    assert message in result.stderr
    assert list(here.iterdir()) == []


def test_an_unfit_environment_is_refused_with_its_defect(here):
    Path("servers.py").write_text(BROKEN)
    before = sorted(here.iterdir())
    result = turnwise("train", "env=servers:Broken", "env.held_out={}", "--output", "run")
    assert result.exit_code == 2, result.output
    assert "servers:Broken is unfit for training" in result.stderr
    assert sorted(path for path in here.iterdir() if path.name != "__pycache__") == before


def test_a_run_whose_environment_never_works_ends_with_code_two_and_its_error(here):
    Path("ruins.py").write_text(BROKEN)
    settings = [*SMALL[1:], "env=ruins:Broken", "env.held_out={}", "eval.episodes=0"]
    result = turnwise("train", *settings, "train.steps=1", "--output", "run")
    assert result.exit_code == 2, result.output
    assert "RuntimeError: the server is down (ruins.py:6)" in result.stderr
    assert "healthy" not in result.output
    result = turnwise("eval", "run", "--episodes", "2")
    assert result.exit_code == 2, result.output
    assert "every episode of ruins:Broken failed" in result.stderr
    assert "the server is down" in result.stderr


def test_a_run_that_the_guard_stops_ends_with_code_one(here):
    Path("outages.py").write_text(BROKEN)
    settings = [*SMALL[1:], "env=outages:Broken", "env.held_out={}", "eval.episodes=0", "guard=act"]
    result = turnwise("train", *settings, "train.steps=9", "--output", "run")
    assert result.exit_code == 1, result.output
    assert "The guard stopped the run at step 2" in result.stdout
    assert "8 episodes were lost to faults" in " ".join(result.stdout.split())
    assert "continue       turnwise resume run" in result.stdout


def test_control_c_finishes_the_step_saves_and_says_how_to_resume(here):
    command = [sys.executable, "-m", "turnwise", "train", *SMALL, "eval.episodes=0", "train.steps=9999", "--plain"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    process = subprocess.Popen(
        [*command, "--output", "run"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("step "):
            break
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    last = [line for line in (*lines, *output.splitlines()) if line.startswith("step ")][-1].split()[1].split("/")[0]
    assert f"Interrupted: step {last} is finished and saved." in output
    assert output.splitlines()[-1] == "continue       turnwise resume run"
    assert (here / "run" / "checkpoints" / f"step_{int(last):06d}" / "manifest.json").is_file()


def test_dry_run_prints_a_recipe_that_can_be_saved_with_what_it_costs_and_starts_nothing(here):
    result = turnwise("train", *SMALL, "train.steps=7", "--dry-run")
    assert result.exit_code == 0, result.output
    recipe = yaml.safe_load(result.stdout)
    assert (recipe["train"]["steps"], recipe["env"]["id"]) == (7, "game/guess-number-easy")
    assert "# memory" in result.stdout
    assert list(here.iterdir()) == []
    Path("saved.yaml").write_text(result.stdout)
    assert yaml.safe_load(turnwise("train", "saved.yaml", "--dry-run").stdout) == recipe


def test_dry_run_refuses_an_environment_that_does_not_exist(here):
    Path("servers.py").write_text(BROKEN)
    refused = turnwise("train", "env=servers:Brocken", "--dry-run")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "did you mean servers:Broken?" in refused.stderr
    assert "there is no module nowhere" in turnwise("train", "env=nowhere:Broken", "--dry-run").stderr


def test_dry_run_says_what_is_hardly_meant(here):
    odd = ["train.steps=3", "train.warmup=3", "algorithm.cut=bootstrap", "eval.tries=2", "eval.temperature=0"]
    result = turnwise("train", *SMALL, *odd, "rollout.max_tokens=256", "--dry-run")
    notes = [line.removeprefix("# note: ") for line in result.stdout.splitlines() if line.startswith("# note: ")]
    keys = ["train.warmup", "algorithm.cut", "eval.tries", "rollout.max_tokens"]
    assert [note.split("=")[0] for note in notes] == keys
    assert "# note" not in turnwise("train", *SMALL, "--dry-run").stdout


def test_eval_says_that_greedy_tries_are_all_the_same(here):
    result = turnwise("eval", "nano", *SMALL, "--episodes", "1", "--tries", "2", "--temperature", "0", "--json")
    assert result.stderr.startswith("note: eval.tries=2 at eval.temperature=0 plays the same episode 2 times")


def test_eval_counts_the_tasks_that_a_run_was_trained_on(here):
    rows = [{"question": f"{number} + 1", "answer": str(number + 1)} for number in range(40)]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = ["env=tasks/own", "env.kwargs.tasks=sums.jsonl", "env.rewards=[exact]"]
    trained = turnwise("train", *SMALL[1:], *own, "train.steps=1", "--quiet", "--output", "run")
    assert trained.exit_code == 0, trained.output
    held_out, half = (len(TaskList.of("sums.jsonl", split="validation", held_out=share).rows) for share in (0.1, 0.5))
    said = f"note: {half - held_out} of the {half} tasks to play belong to this run's training"
    assert said in turnwise("eval", "run", "env.kwargs.held_out=0.5", "--episodes", "99").stderr
    assert "training" not in turnwise("eval", "run", "--episodes", "99").stderr
    assert "training" not in turnwise("eval", "run", "env.kwargs.held_out=0.05", "--episodes", "99").stderr


def test_scripted_players_are_evaluated_like_models(here):
    where = ["--env", "game/guess-number-easy", "--episodes", "20", "--json"]
    rows = {name: json.loads(turnwise("eval", name, *where).stdout) for name in ("oracle", "random")}
    assert rows["oracle"]["eval/success"] == 1.0
    assert rows["random"]["eval/success"] < 0.9
    assert rows["random"]["eval/episodes"] == 20


def test_a_recipe_that_comes_from_the_package_is_said_to(here):
    result = turnwise("train", "recipes/search-nano.yaml", "--dry-run")
    assert result.stderr.startswith("note: there is no recipes/search-nano.yaml here; this is the one that comes with")
    Path("recipes").mkdir()
    Path("recipes/search-nano.yaml").write_text("seed: 7")
    result = turnwise("train", "recipes/search-nano.yaml", "--dry-run")
    assert (result.stderr, yaml.safe_load(result.stdout)["seed"]) == ("", 7)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["engine.memory_gib=1e-6"], "engine.memory_gib is 1e-06, too little for one episode of 256 tokens"),
        (["rollout.context=9999"], "rollout.context is 9999, but nano has room for 512 tokens"),
        (["env=nowhere:Env"], "nowhere"),
        (["model.template=none"], "model.template in a recipe"),
        (["sft.chats=long.jsonl"], "long.jsonl, line 2: it has 612 tokens but the model has room for 512"),
    ],
)
def test_what_cannot_work_is_found_before_the_folder_is_made(settings, words, here):
    chats = [{"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "a"}]} for text in "ab"]
    chats[1]["messages"][0]["content"] = "b " * 607
    Path("long.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    result = turnwise("train", *SMALL, *settings, "--output", "run")
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert words in result.stderr
    assert not Path("run").exists()


@pytest.mark.parametrize("held_out", [0, 2])
def test_a_run_whose_episodes_have_no_room_for_a_turn_ends_at_once_and_leaves_nothing(held_out, here):
    settings = [*SMALL, f"eval.episodes={held_out}", "rollout.context=20", "train.steps=9"]
    result = turnwise("train", *settings, "--output", "run")
    assert result.exit_code == 2, result.output
    assert "its first prompt fills rollout.context (20 tokens); raise it" in result.stderr
    assert "step 1/9" not in result.output
    assert not Path("run").exists()


def test_an_evaluation_without_room_for_a_turn_is_no_success_of_zero(here):
    result = turnwise("eval", "nano", *SMALL, "rollout.context=20")
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert "no episode of game/guess-number-easy had room for a turn" in result.stderr


def test_sft_imitates_the_expert_alone(here):
    settings = [*SMALL, "sft.demonstrations=2", "sft.batch=2", "sft.epochs=1", "eval.episodes=0"]
    result = turnwise("sft", *settings, "env=search/geo-1hop", "name=copy")
    assert result.exit_code == 0, result.output
    assert "1 step of 2 demonstrations" in result.stdout
    assert "step 1/1  loss " in result.stdout
    assert "try next       turnwise train env=search/geo-1hop model=runs/copy-sft env.check=false" in result.stdout
    assert "rollout.max_turns=2 rollout.max_tokens=6 rollout.context=256" in result.stdout
    assert Path("runs/copy-sft/checkpoints/step_000001/model.safetensors").is_file()
