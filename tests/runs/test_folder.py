"""A run folder is created whole, found again, and goes back to where a checkpoint was."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from turnwise.runs import RunFolder, RunFolderError, read_journal, write_groups
from turnwise.types import Group, StopReason, Trajectory, Turn

CONFIG = {"name": "geo", "train": {"steps": 3, "learning_rate": 1e-5}, "system": "naïve"}
META = {"turnwise": "0.1.0", "command": ["turnwise", "train"]}


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def play_step(run: RunFolder, step: int) -> None:
    """What a training step leaves behind."""
    turn = Turn(prompt_ids=[1], sampled_ids=[step, 2], logprobs=[-0.5, -0.25])
    trajectory = Trajectory(id=f"{step}/0", turns=[turn], stop=StopReason.DONE, terminated=True)
    write_groups(run.rollouts_file(step), [Group(id=str(step), trajectories=[trajectory])])
    run.metrics.append({"step": step, "rollout/success": step / 7})
    for index in range(step):
        run.turns.append({"step": step, "turn": index})
    run.evals.append({"step": step, "eval/success": 0.5})


def save(run: RunFolder, step: int) -> None:
    run.checkpoints.write(step, lambda draft: write_text(draft / "state.json", "{}"), run.marks())


def write_text(path: Path, text: str) -> None:
    path.write_text(text)


def test_a_new_run_has_its_config_and_meta_and_can_be_opened(tmp_path: Path):
    RunFolder.create(tmp_path / "runs" / "geo", CONFIG, META)
    run = RunFolder.open(tmp_path / "runs" / "geo")
    assert run.config == CONFIG
    assert run.meta == {"schema": 2, **META}
    assert yaml.safe_load((run.path / "config.yaml").read_text()) == CONFIG
    assert list(yaml.safe_load((run.path / "config.yaml").read_text())) == list(CONFIG)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["geo"]


def test_an_existing_run_is_refused_and_the_message_says_how_to_resume(tmp_path: Path):
    RunFolder.create(tmp_path / "geo", CONFIG, META)
    before = content_of(tmp_path)
    with pytest.raises(RunFolderError, match=r"already holds a run; continue it with `turnwise resume .*geo`"):
        RunFolder.create(tmp_path / "geo", {}, {})
    assert content_of(tmp_path) == before


def test_an_empty_folder_is_taken_and_one_with_other_files_is_refused(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    assert RunFolder.create(tmp_path / "empty", CONFIG, META).config == CONFIG
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("words")
    with pytest.raises(RunFolderError, match="is not empty; give the run another name"):
        RunFolder.create(tmp_path / "thesis", CONFIG, META)
    assert content_of(tmp_path / "thesis") == {"chapter.txt": b"words"}


def test_what_a_killed_creation_left_is_no_run_and_in_no_way(tmp_path: Path):
    for draft in (".geo.12ab34cd.draft", ".geo-2.12ab34cd.draft", ".geo.0000ffff.draft"):
        (tmp_path / draft / "rollouts").mkdir(parents=True)
    long_ago = time.time() - 7200
    for draft in (".geo.12ab34cd.draft", ".geo-2.12ab34cd.draft"):
        os.utime(tmp_path / draft, (long_ago, long_ago))
    assert RunFolder.create(tmp_path / "geo", CONFIG, META).config == CONFIG
    # That of another run stays, and one that another command may be making at this moment.
    assert sorted(path.name for path in tmp_path.iterdir()) == [".geo-2.12ab34cd.draft", ".geo.0000ffff.draft", "geo"]


def test_open_says_what_is_wrong_with_a_folder(tmp_path: Path):
    with pytest.raises(RunFolderError, match=r"is not a run folder \(it has no meta\.json\)"):
        RunFolder.open(tmp_path)
    run = RunFolder.create(tmp_path / "geo", CONFIG, META)
    (run.path / "meta.json").write_text('{"schema": 3}')
    with pytest.raises(RunFolderError, match=r"has schema 3, this version of turnwise reads 2; use the version that"):
        RunFolder.open(run.path)


def test_a_config_is_replaced_whole(tmp_path: Path):
    run = RunFolder.create(tmp_path / "geo", CONFIG, META)
    run.begin({**CONFIG, "seed": 3})
    assert run.config == RunFolder.open(run.path).config == {**CONFIG, "seed": 3}
    assert not list(run.path.glob("*.draft"))


def test_rewind_makes_a_continued_run_equal_to_one_that_was_never_interrupted(tmp_path: Path):
    straight, broken = (RunFolder.create(tmp_path / name, CONFIG, META) for name in ("straight", "broken"))
    for run in (straight, broken):
        for step in (1, 2):
            play_step(run, step)
        save(run, 2)
    play_step(broken, 3)
    broken.events.append({"step": 3, "kind": "faults"})
    (broken.path / "rollouts" / "step_000004.jsonl.zst.draft").write_bytes(b"half")
    with broken.metrics.path.open("ab") as file:
        file.write(b'{"step": 4, "rollo')
    broken.rewind(2)
    for run in (straight, broken):
        play_step(run, 3)
        save(run, 3)
    assert content_of(straight.path) == content_of(broken.path)


def test_rewind_to_an_older_checkpoint_removes_the_later_ones(tmp_path: Path):
    run = RunFolder.create(tmp_path / "geo", CONFIG, META)
    for step in (1, 2, 3):
        play_step(run, step)
        save(run, step)
    run.rewind(1)
    assert run.checkpoints.steps() == [1]
    assert run.rollout_steps() == [1]
    assert [row["step"] for row in read_journal(run.metrics.path)] == [1]
    assert len(read_journal(run.turns.path)) == 1


def test_rewind_orders_steps_by_number_beyond_six_digits(tmp_path: Path):
    run = RunFolder.create(tmp_path / "geo", CONFIG, META)
    for step in (999_999, 1_000_000):
        write_groups(run.rollouts_file(step), [])
        save(run, step)
    run.rewind(999_999)
    assert run.rollout_steps() == [999_999]


def test_rewind_refuses_a_shorter_journal_before_it_removes_anything(tmp_path: Path):
    run = RunFolder.create(tmp_path / "geo", CONFIG, META)
    play_step(run, 1)
    save(run, 1)
    play_step(run, 2)
    run.turns.path.write_bytes(b"")
    before = content_of(run.path)
    with pytest.raises(RunFolderError, match=r"turns\.jsonl has 0 bytes of whole lines, but the checkpoint"):
        run.rewind(1)
    assert content_of(run.path) == before


def test_a_second_writer_is_refused_until_the_first_one_is_killed(tmp_path: Path):
    run = RunFolder.create(tmp_path / "geo", CONFIG, META)
    program = (
        "import sys; from turnwise.runs import RunFolder\n"
        "with RunFolder.open(sys.argv[1]).claim(): print('claimed', flush=True); sys.stdin.read()"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", program, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert first.stdout is not None
    assert first.stdout.readline() == b"claimed\n"
    with pytest.raises(RunFolderError, match="is being written by another process"), run.claim():
        pass
    first.kill()
    first.communicate()
    with run.claim():
        run.metrics.append({"step": 1})


def test_run_folders_are_read_without_torch(tmp_path: Path):
    run = RunFolder.create(tmp_path / "geo", CONFIG, META)
    play_step(run, 1)
    program = (
        "import sys; from turnwise.runs import RunFolder, read_journal, read_rows\n"
        "import turnwise.runs.loggers\n"
        "run = RunFolder.open(sys.argv[1])\n"
        "assert read_journal(run.metrics.path)[0]['step'] == 1\n"
        "assert next(read_rows(run.rollouts_file(1)))['turns'][0]['sampled_ids'] == [1, 2]\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(run.path)], check=True, timeout=60)
