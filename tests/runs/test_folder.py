"""A run folder is created whole, found again, and goes back to where a checkpoint was."""

import os
import shutil
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
    assert run.meta == {"schema": 3, **META}
    assert yaml.safe_load((run.path / "config.yaml").read_text()) == CONFIG
    assert list(yaml.safe_load((run.path / "config.yaml").read_text())) == list(CONFIG)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["geo"]


def test_an_existing_run_is_refused_and_the_message_says_how_to_resume(tmp_path: Path):
    RunFolder.create(tmp_path / "geo", CONFIG, META)
    before = content_of(tmp_path)
    with pytest.raises(RunFolderError, match=r"already contains a run; continue it with `turnwise resume .*geo`"):
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
    (run.path / "meta.json").write_text('{"schema": 9}')
    with pytest.raises(RunFolderError, match=r"has schema 9, this version of turnwise reads 3; use the version that"):
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


def test_rewind_removes_the_held_out_episodes_of_later_steps(tmp_path: Path):
    run = RunFolder.create(tmp_path / "geo", CONFIG, META)
    for step in (0, 2, 4):
        write_groups(run.evaluation_file(step), [])
    save(run, 2)
    run.rewind(2)
    assert run.evaluation_steps() == [0, 2]


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
    with pytest.raises(RunFolderError, match=r"turns\.jsonl has 0 bytes of complete lines, but the checkpoint"):
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


MAKES_ONE_RUN_AT_ONCE = """
import json, os, sys
from pathlib import Path
from turnwise.runs import RunFolder, RunFolderError

def make(path, word):
    try:
        RunFolder.create(path, {"name": word}, {"word": word})
        return "made"
    except RunFolderError as error:
        return str(error)

for round in range(25):
    path = Path(sys.argv[1], f"run-{round}")
    if round % 2:
        path.mkdir()
    ready, go = os.pipe()
    answers, answer = os.pipe()
    for word in "abcd":
        if os.fork() == 0:
            os.close(go)
            os.read(ready, 1)  # until all are there
            os.write(answer, json.dumps([word, make(path, word)]).encode() + b"\\n")
            os._exit(0)
    os.close(go), os.close(ready), os.close(answer)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    said = dict(json.loads(line) for line in os.fdopen(answers).read().splitlines())
    winners = [word for word, what in said.items() if what == "made"]
    assert len(winners) == 1, said
    assert all("already contains a run" in what for word, what in said.items() if word not in winners), said
    run = RunFolder.open(path)
    assert run.config == {"name": winners[0]} and run.meta["word"] == winners[0]
    with run.claim():
        run.metrics.append({"step": 1})
assert not list(Path(sys.argv[1]).glob(".*"))
"""


def test_of_commands_that_make_one_run_at_once_exactly_one_wins(tmp_path: Path):
    command = [sys.executable, "-c", MAKES_ONE_RUN_AT_ONCE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "history.jsonl", "config.yaml", "lock", "checkpoints", "rollouts", "sft"]
)
def test_a_link_leads_no_writer_out_of_the_folder(tmp_path: Path, name: str):
    run = RunFolder.create(tmp_path / "geo", CONFIG, META)
    for step in (1, 2):
        play_step(run, step)
        save(run, step)
    elsewhere = tmp_path / "elsewhere"
    there = run.path / name
    if there.exists():
        there.rename(elsewhere)
    else:
        elsewhere.mkdir()
    there.symlink_to(elsewhere)
    before = content_of(tmp_path)
    with pytest.raises(RunFolderError, match=rf"{name} is a link, and a run writes and deletes in its own folder only"):
        go_back(RunFolder.open(run.path), 1)
    assert content_of(tmp_path) == before


def go_back(run: RunFolder, step: int) -> None:
    with run.claim():
        run.carry_on(step, CONFIG)


def test_links_to_checkpoints_ledgers_and_drafts_cost_nothing_elsewhere(tmp_path: Path):
    run = RunFolder.create(tmp_path / "geo", CONFIG, META)
    play_step(run, 1)
    save(run, 1)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("words")
    for name in ("rollouts/step_000002.jsonl.zst", "config.yaml.0a0a0a0a.draft"):
        (run.path / name).symlink_to(precious / "thesis.txt")
    for name in ("checkpoints/step_000002.draft", "checkpoints/step_000001.old.draft"):
        (run.path / name).symlink_to(precious)
    with run.claim():
        run.carry_on(1, {**CONFIG, "seed": 3})
        play_step(run, 2)
        save(run, 2)
    assert content_of(precious) == {"thesis.txt": b"words"}
    assert not list(run.path.rglob("*.draft"))


READS_WHAT_IS_NO_FILE = """
import os, shutil, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_folder import CONFIG, META, go_back, play_step, save
from turnwise.runs.reading import read_run
from turnwise.runs import RunFolder, RunFolderError, read_groups, read_journal, read_rows

here = Path(sys.argv[2])
run = RunFolder.create(here / "geo", CONFIG, META)
play_step(run, 1)
save(run, 1)
readers = {
    "config.yaml": [RunFolder.open],
    "meta.json": [RunFolder.open],
    "metrics.jsonl": [lambda path: read_journal(path / "metrics.jsonl"), lambda path: go_back(RunFolder.open(path), 1)],
    "lock": [lambda path: go_back(RunFolder.open(path), 1)],
    "rollouts/step_000001.jsonl.zst": [
        lambda path: read_groups(path / "rollouts/step_000001.jsonl.zst"),
        lambda path: list(read_rows(path / "rollouts/step_000001.jsonl.zst")),
    ],
    "checkpoints/step_000001/manifest.json": [lambda path: RunFolder.open(path).checkpoints.at(1)],
    "checkpoints/step_000001/state.json": [lambda path: RunFolder.open(path).checkpoints.at(1)],
    "checkpoints/step_000001/journals.json": [lambda path: go_back(RunFolder.open(path), 1)],
}
put = {"pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero")}
for name, reads in readers.items():
    for place in put.values():
        copy = here / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run.path, copy)
        (copy / name).unlink(missing_ok=True)
        place(copy / name)
        for read in reads:
            try:
                read(copy)
            except RunFolderError as error:
                assert name.split("/")[-1] in str(error), error
            else:
                raise AssertionError(f"{name} was read")
        read_run(copy)
"""


def test_pipes_and_devices_in_the_place_of_files_are_refused_at_once(tmp_path: Path):
    command = [sys.executable, "-c", READS_WHAT_IS_NO_FILE, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path):
    run = RunFolder.create(tmp_path / "geo", CONFIG, META)
    play_step(run, 1)
    save(run, 1)
    before = content_of(run.path)
    shutil.copytree(run.checkpoints.at(1), run.checkpoints.folder / "step_000000.old.draft")
    shutil.copytree(run.checkpoints.at(1), run.checkpoints.folder / "step_000002.draft")
    (run.path / "rollouts" / "step_000002.jsonl.zst.00ff00ff.draft").write_bytes(b"half")
    (run.path / "config.yaml.00ff00ff.draft").write_bytes(b"half")
    with run.claim():
        pass
    assert content_of(run.path) == {**before, "lock": b""}


def test_a_config_that_was_cut_or_edited_is_refused_though_it_may_still_be_yaml(tmp_path: Path):
    run = RunFolder.create(tmp_path / "geo", CONFIG, META)
    file = run.path / "config.yaml"
    whole = file.read_bytes()
    cuts = [whole[:end] for end in range(len(whole))]
    flips = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in range(len(whole))]
    for content in (*cuts, *flips, whole + b"seed: 3\n", b"\xff\xfe", b"[" * 9999):
        file.write_bytes(content)
        with pytest.raises(RunFolderError, match=r"config\.yaml is damaged or was edited; restore it"):
            RunFolder.open(run.path)
    file.write_bytes(whole)
    assert RunFolder.open(run.path).config == CONFIG
    file.unlink()
    with pytest.raises(RunFolderError, match=r"cannot read .*config\.yaml: No such file"):
        RunFolder.open(run.path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 99_999])
def test_a_damaged_meta_file_is_named(tmp_path: Path, content: bytes):
    run = RunFolder.create(tmp_path / "geo", CONFIG, META)
    (run.path / "meta.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"meta\.json is damaged: it is not a JSON object"):
        RunFolder.open(run.path)


def test_a_missing_circumstance_is_named(tmp_path: Path):
    run = RunFolder.create(tmp_path / "geo", CONFIG, {"threads": "two"})
    with pytest.raises(RunFolderError, match=r"meta\.json is damaged: threads is 'two'"):
        run.circumstance("threads", int)
    with pytest.raises(RunFolderError, match=r"meta\.json is damaged: device is None"):
        run.circumstance("device", str)


@pytest.mark.parametrize("name", ["metrics", "turns", "events", "evals", "history"])
def test_a_flipped_bit_in_a_journal_is_found_before_anything_is_removed(tmp_path: Path, name: str):
    run = RunFolder.create(tmp_path / "geo", CONFIG, META)
    run.begin(CONFIG)
    for step in (1, 2):
        play_step(run, step)
        run.events.append({"step": step, "kind": "faults"})
        save(run, step)
    file = run.path / f"{name}.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"step": 1', b'"step": 0', 1).replace(b'"step": 0', b'"step": 4', 1))
    before = content_of(run.path)
    with pytest.raises(RunFolderError, match=rf"{name}\.jsonl is damaged or was edited"):
        RunFolder.open(run.path).check_journals()
    with pytest.raises(RunFolderError, match=rf"{name}\.jsonl is damaged or was edited"):
        RunFolder.open(run.path).carry_on(1, CONFIG)
    assert content_of(run.path) == before


def test_history_keeps_every_command_and_the_config_of_every_step(tmp_path: Path):
    run = RunFolder.create(tmp_path / "geo", CONFIG, META)
    run.begin(CONFIG, command=["turnwise", "train"])
    configs = {"b": {**CONFIG, "seed": 1}, "c": {**CONFIG, "seed": 2}}
    for step in (1, 2, 3):
        play_step(run, step)
        save(run, step)
    run.events.append({"step": 3, "kind": "finished"})
    run.carry_on(3, configs["b"], command=["turnwise", "resume"], changes=["seed: 0 → 1"])
    play_step(run, 4)
    save(run, 4)
    play_step(run, 5)
    assert [run.config_at(step).get("seed") for step in (1, 2, 3, 4, 5)] == [None, None, None, 1, 1]
    run.carry_on(2, configs["c"])  # of an older checkpoint: step 3 is learnt again, and otherwise
    assert [run.config_at(step).get("seed") for step in (1, 2, 3, 4, 5)] == [None, None, 2, 2, 2]
    assert RunFolder.open(run.path).config == configs["c"]
    rows = read_journal(run.history.path)
    assert [(row["kind"], row["step"]) for row in rows] == [("started", 0), ("resumed", 3), ("resumed", 2)]
    assert rows[1]["undone"] == [{"step": 3, "kind": "finished"}]
    assert (rows[1]["command"], rows[1]["changes"]) == (["turnwise", "resume"], ["seed: 0 → 1"])


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
