"""The stages of the generator: what each gate removes, counts, resuming, parallel work, a chat model as the author."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.evaluate.task_writer import SOLUTION, TaskWriter, stages_asked
from tests.sandboxes import needs_bubblewrap
from turnwise.chat_endpoint import ChatEndpoint
from turnwise.cli import app
from turnwise.envs.registry import make
from turnwise.envs.terminals.families.family_table import FamilyAuthor, draft_names, make_task
from turnwise.envs.terminals.flawed_tasks import FLAWS
from turnwise.envs.terminals.task_source import split_of_task
from turnwise.envs.terminals.terminal_task import TerminalTask, read_tasks
from turnwise.evaluate.chat_author import ChatAuthor
from turnwise.evaluate.plan_tests import plays_endpoint
from turnwise.evaluate.task_solvers import ENV, playing_solver, scripted_solver
from turnwise.evaluate.terminal_stages import (
    LOG,
    STAGES,
    Gate,
    Stages,
    count_gates,
    read_log,
    require_same_settings,
    truth_texts,
)
from turnwise.rollout.episode import EpisodeSpec
from turnwise.types import Trajectory

pytestmark = needs_bubblewrap
GATES = {
    "wrong-truth": "solve",
    "no-permission": "solve",
    "already-done": "initial",
    "no-tree": "initial",
    "always-passes": "final",
    "no-program": "final",
}


def stages(**options: object) -> Stages:
    return Stages(**{"author": FamilyAuthor(), "solver": scripted_solver(), "tries": 1, "k": 1, **options})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("flaw", FLAWS)
def test_each_flaw_is_removed_at_its_gate(flaw: str, tmp_path: Path):
    last = stages().run([f"csv-c2-s1-{flaw}"], tmp_path)[-1]
    assert (last.ok, last.stage) == (False, GATES[flaw])
    assert last.reason
    assert [*tmp_path.glob("*/task.json")] == []


def test_words_that_give_the_truth_away_are_removed(tmp_path: Path):
    class Teller(FamilyAuthor):
        def describe(self, name: str) -> TerminalTask:
            task = make_task(name)
            told = f"{task.instruction} It is {max(truth_texts(task.truth), key=len)}"
            return TerminalTask(**{**vars(task), "instruction": told})

    (gate,) = stages(author=Teller()).run(["checksums-c1-s3"], tmp_path)
    assert (gate.stage, gate.ok) == ("description", False)
    assert "give the truth away" in gate.reason


def test_sound_tasks_pass_are_written_and_counted(tmp_path: Path):
    names = draft_names(3, ["csv", "logs", "cron"], [1])
    gates = stages().run([*names, "csv-c1-s0-wrong-truth"], tmp_path, jobs=2)
    assert [task.name for task in read_tasks(tmp_path)] == sorted(names)
    assert {stage: dict(each) for stage, each in count_gates(gates).items()} == {
        **{stage: {"passed": 4} for stage in STAGES[:3]},
        "solve": {"passed": 3, "removed": 1},
    }
    assert sorted(map(Gate.line, read_log(tmp_path))) == sorted(map(Gate.line, gates))


def test_a_folder_that_was_left_in_the_middle_is_continued(tmp_path: Path):
    asked: list[str] = []

    class Counting(FamilyAuthor):
        def describe(self, name: str) -> TerminalTask:
            asked.append(name)
            return make_task(name)

    def dies(task: TerminalTask, tries: int) -> int:
        raise KeyboardInterrupt

    names = ["csv-c1-s0", "csv-c1-s1"]
    stages(author=Counting()).run(names[:1], tmp_path)
    with pytest.raises(KeyboardInterrupt):
        stages(author=Counting(), solver=dies).run(names, tmp_path)
    with (tmp_path / LOG).open("a") as log:
        log.write('{"name": "csv-c1-s1", "sta')  # a kill in the middle of a line
    gates = stages(author=Counting()).run(names, tmp_path)
    assert asked == names  # no draft is written twice
    assert [(gate.name, gate.stage) for gate in gates] == [(name, stage) for name in names for stage in STAGES]
    assert [task.name for task in read_tasks(tmp_path)] == names
    assert [*(tmp_path / ".drafts").iterdir()] == []


def test_a_noisy_solver_solves_sometimes_and_the_rest_is_learnable(tmp_path: Path):
    task = make_task("csv-c1-s0")
    assert 0 < scripted_solver(0.5)(task, 6) < 6
    kept = stages(solver=lambda *_: 2, tries=4, k=4, learnable=True).run(["csv-c1-s0"], tmp_path / "some")
    dropped = stages(solver=lambda *_: 4, tries=4, k=4, learnable=True).run(["csv-c1-s0"], tmp_path / "all")
    assert kept[-1].ok
    assert (dropped[-1].ok, dropped[-1].reason) == (False, "always solved")
    with pytest.raises(ValueError, match="noise is 1"):
        scripted_solver(1.0)


def test_a_folder_keeps_its_settings(tmp_path: Path):
    require_same_settings(tmp_path, {"tries": 4})
    require_same_settings(tmp_path, {"tries": 4})
    with pytest.raises(ValueError, match="begun with tries 4, not 8; name another folder"):
        require_same_settings(tmp_path, {"tries": 8})


@contextmanager
def writer(**answers: str) -> Iterator[TaskWriter]:
    with TaskWriter(answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def chat_stages(server: TaskWriter) -> Stages:
    endpoint = ChatEndpoint(server.url, model="m")
    solver = playing_solver(plays_endpoint(endpoint, seconds=60, concurrency=2, turns=16))
    return stages(author=ChatAuthor(endpoint), solver=solver, tries=2, k=2)


def test_a_chat_model_writes_and_solves_a_task(tmp_path: Path):
    with writer() as server:
        gates = chat_stages(server).run(["text-c1-s0"], tmp_path)
    assert [(gate.stage, gate.ok) for gate in gates] == [(stage, True) for stage in STAGES]
    assert gates[-1].solved == 2
    (task,) = read_tasks(tmp_path)
    assert (task.family, task.complexity, task.truth) == ("text", 1, {"lines": 3})
    assert stages_asked(server) == [*STAGES[:3], *["solve"] * 4]
    assert [body["temperature"] for body in server.asked[:3]] == [1.0, 0.6, 0.6]


@pytest.mark.parametrize(
    ("stage", "answer", "reason"),
    [
        ("description", "I cannot do that.", "no <truth>"),
        ("description", "<task>Do it.</task><truth>[1]</truth>", "not a JSON object"),
        ("description", f"<task>Do it.</task><truth>{'[' * 5000}</truth>", ""),
        ("description", '<task>Do it.</task><truth>{"a": "\\ud800"}</truth>', "surrogates not allowed"),
        ("initial", "<setup>echo \ud800</setup><test>pass</test>", "surrogates not allowed"),
        ("initial", "<setup>exit 3</setup><test>pass</test>", "the setup failed"),
        ("initial", "<setup>true</setup><test>raise SystemExit(1)</test>", "the initial test fails"),
        ("final", "<test>pass</test>", "the untouched tree passes"),
        ("final", "<test>check the files</test>", "not Python"),
        ("final", f"<test>{'-' * 100_000}1</test>", "not Python"),
        ("solve", "<command>true</command>", "never solved"),
    ],
)
def test_what_a_chat_model_gets_wrong_ends_at_its_gate(stage: str, answer: str, reason: str, tmp_path: Path):
    with writer(**{stage: answer}) as server:
        last = chat_stages(server).run(["text-c1-s0"], tmp_path)[-1]
    assert (last.stage, last.ok) == (stage, False)
    assert reason in last.reason


def test_a_chat_models_draft_is_not_paid_for_twice(tmp_path: Path):
    with writer(solve=SOLUTION) as server:
        with pytest.raises(ZeroDivisionError):
            stages(author=ChatAuthor(ChatEndpoint(server.url, model="m")), solver=lambda *_: 1 // 0).run(
                ["text-c1-s0"], tmp_path
            )
        gates = chat_stages(server).run(["text-c1-s0"], tmp_path)
    assert gates[-1].ok
    assert stages_asked(server)[:3] == [*STAGES[:3]]
    assert set(stages_asked(server)[3:]) == {"solve"}


def test_a_solver_that_cannot_be_reached_removes_no_task(tmp_path: Path):
    silent = ChatEndpoint("http://127.0.0.1:9/v1", model="m", tries=1)
    solver = playing_solver(plays_endpoint(silent, seconds=60, concurrency=1))
    with pytest.raises(ConnectionError, match="gave no answer"):
        stages(solver=solver).run(["csv-c1-s0"], tmp_path)
    assert stages().run(["csv-c1-s0"], tmp_path)[-1].ok


def test_an_agent_tries_every_task_whichever_it_learned_from():
    def play(specs: Sequence[EpisodeSpec]) -> list[Trajectory]:
        make(ENV, **specs[0].kwargs)
        return []

    learned = {"tasks": "csv", "complexity": [3], "split": "test", "think": False}
    assert playing_solver(play, learned)(make_task("logs-c2-s0"), 1) == 0


def test_a_folder_in_which_no_draft_passed_can_be_shown(tmp_path: Path):
    stages().run(["csv-c1-s0-no-tree"], tmp_path)
    shown = CliRunner().invoke(app, ["tasks", "show", str(tmp_path)])
    assert "the setup failed" in shown.output
    assert "no draft in" in shown.output


@pytest.mark.parametrize("line", ["[1]", '{"step": 1}', "text"])
def test_a_log_of_something_else_is_one_message(line: str, tmp_path: Path):
    (tmp_path / LOG).write_text(f"{line}\n")
    with pytest.raises(ValueError, match="is not a log of the stages"):
        read_log(tmp_path)


def test_a_refused_command_leaves_no_settings_and_names_count_once(tmp_path: Path):
    run, folder = CliRunner(), tmp_path / "made"
    made = ["tasks", "make", "terminals", "--count", "2", "--output", str(folder), "--tries", "1"]
    refused = run.invoke(app, [*made, "--endpoint", "http://127.0.0.1:9/v1", "--solver", "http://127.0.0.1:9/v1"])
    assert "add --model NAME" in refused.output
    result = run.invoke(app, [*made, "--families", "csv, csv", "--complexities", "1,1"])
    assert "2 tasks in" in result.output
    assert [task.name for task in read_tasks(folder)] == ["csv-c1-s0", "csv-c1-s1"]
    (tmp_path / "file").write_text("")
    assert "is not a folder" in run.invoke(app, [*made[:-3], str(tmp_path / "file")]).output


def test_the_commands_make_and_show_tasks(tmp_path: Path):
    run, folder = CliRunner(), str(tmp_path / "made")
    made = ["tasks", "make", "terminals", "--count", "2", "--families", "csv,logs", "--output", folder]
    result = run.invoke(app, [*made, "--complexities", "1", "--tries", "1"])
    assert result.exit_code == 0, result.output
    assert "2 tasks in" in result.output
    shown = run.invoke(app, ["tasks", "show", folder])
    assert "complexity 1" in shown.output
    assert "logs" in shown.output
    assert "--names" in shown.output
    listed = run.invoke(app, ["tasks", "show", folder, "--names"]).output.splitlines()
    assert [line.split() for line in listed] == [[task.name, split_of_task(task)] for task in read_tasks(folder)]
    assert "solution:" in run.invoke(app, ["tasks", "show", folder, "csv-c1-s0"]).output
    misspelt = run.invoke(app, ["tasks", "show", folder, "csv-c1"])
    assert "has no task csv-c1; did you mean csv-c1-s0?" in " ".join(misspelt.output.split())
    assert "begun with tries 1" in run.invoke(app, made).output
    assert "from 1 to 6" in run.invoke(app, [*made, "--complexities", "7"]).output
    assert "add --model NAME" in run.invoke(app, [*made[:-1], f"{folder}2", "--solver", "http://127.0.0.1:9/v1"]).output


def test_without_an_output_tasks_go_to_a_folder_that_help_and_output_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    run, made = CliRunner(), ["tasks", "make", "terminals", "--count", "1"]
    result = run.invoke(app, [*made, "--families", "csv", "--complexities", "1", "--tries", "1"])
    assert "1 draft for tasks/terminals;" in result.output
    assert "1 task in tasks/terminals\n" in result.output
    assert [task.name for task in read_tasks(tmp_path / "tasks" / "terminals")] == ["csv-c1-s0"]
    assert "tasks/terminals" in run.invoke(app, [*made, "--help"], env={"COLUMNS": "200"}).output


def test_the_log_is_one_json_object_a_line(tmp_path: Path):
    stages().run(["csv-c1-s0"], tmp_path)
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert [line["stage"] for line in lines] == [*STAGES]
    assert lines[-1] == {"name": "csv-c1-s0", "stage": "solve", "ok": True, "tries": 1, "solved": 1}
