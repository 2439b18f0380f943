"""Run folders that are cut off, incomplete or damaged still report."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.report.page_data import data_of
from tests.report.runs import write_run
from turnwise.report import write_report
from turnwise.runs import RunFolder, RunFolderError
from turnwise.runs.reading import read_run, read_whole_run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "whole", steps=30, recorded=(1, 15, 30))


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def cut(file: Path, by: int) -> None:
    file.write_bytes(file.read_bytes()[:-by])


def test_a_run_cut_off_in_the_middle_of_every_file_still_reports(run: Path, tmp_path: Path) -> None:
    for name in ("metrics", "turns", "events", "evals"):
        cut(run / f"{name}.jsonl", 9)
    for file in (run / "rollouts").iterdir():
        cut(file, file.stat().st_size // 2)
    (shown,) = data_of(write_report([run], tmp_path / "report.html"))["runs"]
    assert shown["curves"]["step"] == list(range(1, 30))
    assert shown["summary"]["steps"] == 29
    assert shown["summary"]["verdict"].endswith("It has not finished: 30 steps were asked for.")


def test_numbers_that_are_not_those_the_run_wrote_become_a_sentence(run: Path, tmp_path: Path) -> None:
    folder = RunFolder.open(run)
    folder.checkpoints.write(31, lambda _: None, folder.marks())
    metrics = folder.metrics.path
    metrics.write_bytes(metrics.read_bytes().replace(b'"step": 7', b'"step": 8', 1))
    (shown,) = data_of(write_report([run], tmp_path / "report.html"))["runs"]
    assert [problem for problem in shown["problems"] if "metrics.jsonl is damaged or was edited" in problem]


@pytest.mark.parametrize(
    "name", ["config.yaml", "meta.json", "metrics.jsonl", "turns.jsonl", "events.jsonl", "evals.jsonl"]
)
def test_a_missing_file_becomes_a_sentence(run: Path, tmp_path: Path, name: str) -> None:
    (run / name).unlink()
    (shown,) = data_of(write_report([run], tmp_path / "report.html"))["runs"]
    assert f"{name} is missing." in shown["problems"]


@pytest.mark.parametrize("name", ["config.yaml", "meta.json", "metrics.jsonl"])
def test_a_damaged_file_becomes_a_sentence(run: Path, tmp_path: Path, name: str) -> None:
    (run / name).write_bytes(b"\xff\xfe{[\n: - \n")
    (shown,) = data_of(write_report([run], tmp_path / "report.html"))["runs"]
    assert any(problem.startswith(f"{name} could not be read") for problem in shown["problems"])


@pytest.mark.parametrize("name", ["config.yaml", "meta.json"])
def test_a_file_nested_without_end_becomes_a_sentence(run: Path, tmp_path: Path, name: str) -> None:
    (run / name).write_text("[" * 20_000 + "]" * 20_000)
    (shown,) = data_of(write_report([run], tmp_path / "report.html"))["runs"]
    assert any(problem.startswith(f"{name} could not be read (lists or mappings") for problem in shown["problems"])


def test_a_report_that_cannot_be_written_is_one_message(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for output in (tmp_path / "file" / "report.html", tmp_path):
        with pytest.raises(ValueError, match=r"cannot write .*; choose a file that you can write"):
            write_report([run], output)


def test_a_run_without_checkpoints_shows_texts_and_says_why(run: Path, tmp_path: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (shown,) = data_of(write_report([run], tmp_path / "report.html"))["runs"]
    assert shown["episodes"][0]["turns"][0]["action"] == "search: town Mahis country"
    assert shown["problems"] == ["No checkpoint has a tokenizer: episodes are shown as texts, without token colours."]


def test_a_run_that_recorded_no_episodes_needs_no_tokenizer(run: Path, tmp_path: Path) -> None:
    shutil.rmtree(run / "rollouts")
    shutil.rmtree(run / "checkpoints")
    (shown,) = data_of(write_report([run], tmp_path / "report.html"))["runs"]
    assert (shown["episodes"], shown["problems"]) == ([], [])


def test_a_damaged_ledger_and_tokenizer_become_sentences(run: Path, tmp_path: Path) -> None:
    (run / "rollouts" / "step_000015.jsonl.zst").write_bytes(b"not compressed at all")
    (run / "checkpoints" / "step_000030" / "tokenizer.json").write_text('{"version": "1.0"}')
    (shown,) = data_of(write_report([run], tmp_path / "report.html"))["runs"]
    assert {episode["step"] for episode in shown["episodes"]} == {1, 30}
    assert any("step_000015.jsonl.zst could not be read to its end" in problem for problem in shown["problems"])
    assert any(problem.startswith("The tokenizer of step_000030 could not be read") for problem in shown["problems"])


def test_of_a_step_that_was_written_twice_the_last_row_counts(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "rollout/success": 0.125}\n')
    metrics = read_run(run).metrics
    assert [row["step"] for row in metrics] == list(range(1, 31))
    assert metrics[2] == {"step": 3, "rollout/success": 0.125}


def test_a_folder_that_is_no_run_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a run folder; name a folder that `turnwise train` wrote"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is not a run: "):
        read_run(tmp_path)


def test_a_misspelt_run_and_a_folder_of_runs_are_answered_with_runs(tmp_path: Path, run: Path) -> None:
    for name in ("first", "second"):
        shutil.copytree(run, tmp_path / "all" / name)
    for read in (read_run, RunFolder.open):
        with pytest.raises(ValueError, match=r"did you mean .*all/first\?"):
            read(tmp_path / "all" / "frist")
        with pytest.raises(ValueError, match=r"it is a folder of runs: name one of .*/all/first, .*/all/second$"):
            read(tmp_path / "all")


def test_a_report_shows_every_command_that_took_the_run_on(run: Path, tmp_path: Path) -> None:
    folder = RunFolder.open(run)
    folder.begin(folder.config, command=["turnwise", "train", "my recipe.yaml"])
    row = {"step": 20, "kind": "resumed", "time": "2026-01-01T00:00:00", "command": ["turnwise", "resume", "run"]}
    folder.history.append({**row, "changes": ["train.steps: 4 → 8"], "undone": [{"kind": "finished"}], "recipe": {}})
    (shown,) = data_of(write_report([run], tmp_path / "report.html"))["runs"]
    first, second = shown["events"][:2]
    assert (first["step"], first["kind"], first["text"]) == (0, "started", "turnwise train 'my recipe.yaml'")
    assert second == {
        "step": 20,
        "time": "2026-01-01T00:00:00",
        "kind": "resumed",
        "text": "turnwise resume run; train.steps: 4 → 8; 1 event undone",
        "rest": {},
    }


def test_a_sound_folder_reads_the_same_whole_and_as_far_as_it_goes(run: Path) -> None:
    lenient, whole = read_run(run), read_whole_run(run)
    assert lenient.problems == []
    for name in ("config", "meta", "metrics", "turns", "events", "evals", "history"):
        assert getattr(whole, name) == getattr(lenient, name)


def test_a_folder_that_must_be_whole_is_refused_at_its_first_damage(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"rollout/success": 0.5}\n')
    with pytest.raises(RunFolderError, match=r"line 31 of .*metrics.jsonl has no valid step"):
        read_whole_run(run)
