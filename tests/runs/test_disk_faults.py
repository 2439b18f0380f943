"""Full and unwritable disks: one sentence with the fix, and what was whole before is whole after."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from turnwise.runs import Checkpoints, Journal, RunFolder, RunFolderError, write_groups

HEAD = """
import resource, sys
from pathlib import Path
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models
from turnwise.runs import RunFolder, RunFolderError, read_journal, write_groups
from turnwise.runs.disk import write_whole

here = Path(sys.argv[1])
run = RunFolder.create(here / "geo", {"name": "geo"}, {})
run.checkpoints.write(1, lambda folder: save_file({"weight": np.ones(64)}, folder / "model.safetensors"))
run.metrics.append({"step": 1})

def message(action):
    try:
        action()
    except RunFolderError as error:
        return str(error)
    raise AssertionError("it could be written")

def assert_intact():
    assert [path.name for path in run.checkpoints.folder.iterdir()] == ["step_000001"]
    assert run.checkpoints.latest() == run.checkpoints.at(1)
    assert not list(here.rglob("*.draft"))
    assert read_journal(run.metrics.path)[0] == {"step": 1}

words = Tokenizer(models.WordLevel({f"word{n}": n for n in range(100_000)}, unk_token="word0"))
writers = {
    "safetensors": lambda folder: save_file({"weight": np.ones(500_000)}, folder / "model.safetensors"),
    "tokenizers": lambda folder: words.save(str(folder / "tokenizer.json")),
    "python": lambda folder: (folder / "state.json").write_bytes(bytes(2_000_000)),
}
def write_all_and_expect(cause):
    for fill in writers.values():
        text = message(lambda: run.checkpoints.write(2, fill))
        assert text == f"cannot write {run.checkpoints.folder / 'step_000002'}: {cause}", text
        assert_intact()
    text = message(lambda: write_whole(run.rollouts_file(1), bytes(2_000_000)))
    assert text == f"cannot write {run.rollouts_file(1)}: {cause}", text
    assert_intact()
"""

FULL_DISK = (
    HEAD
    + """
cause = "No space left on device; free some disk space"
write_all_and_expect(cause)
(here / "ballast").write_bytes(bytes(800_000))
step = 1
def fill_up():
    global step
    while True:
        run.metrics.append({"step": step + 1, "text": "x" * 700})
        step += 1
assert message(fill_up) == f"cannot write {run.metrics.path}: {cause}"
assert step > 10 and [row["step"] for row in read_journal(run.metrics.path)] == list(range(1, step + 1))
assert_intact()
assert message(lambda: RunFolder.create(here / "other", {"text": "x" * 9000}, {})).endswith(cause)
assert sorted(path.name for path in here.iterdir()) == ["ballast", "geo"]
(here / "ballast").unlink()
run.metrics.append({"step": step + 1})
assert [row["step"] for row in read_journal(run.metrics.path)] == list(range(1, step + 2))
run.checkpoints.write(2, lambda folder: (folder / "state.json").write_text("{}") and None)
assert run.checkpoints.steps() == [1, 2]
print("done")
"""
)

FILE_LIMIT = (
    HEAD
    + """
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
write_all_and_expect("File too large; raise the limit on file sizes (ulimit -f)")
print("done")
"""
)

READ_ONLY = (
    HEAD
    + """
import subprocess
subprocess.run(["mount", "-o", "remount,ro", str(here)], check=True)
cause = "Read-only file system; choose a folder on a disk that can be written to"
assert message(lambda: run.metrics.append({"step": 2})) == f"cannot write {run.metrics.path}: {cause}"
assert message(lambda: run.checkpoints.write(2, writers["python"])).endswith(cause)
assert message(lambda: write_groups(run.rollouts_file(1), [])).endswith(cause)
assert message(lambda: RunFolder.create(here / "other", {}, {})) == f"cannot create {here / 'other'}: {cause}"
assert_intact()
print("done")
"""
)

NO_PERMISSION = (
    HEAD
    + """
import os
(here / "geo").chmod(0o500)
if os.geteuid() == 0:
    os.seteuid(65534)  # permissions mean nothing to root
text = message(lambda: RunFolder.create(here / "geo" / "sft", {}, {}))
assert text == (
    f"cannot create {here / 'geo' / 'sft'}: Permission denied; "
    "choose a folder that you can write to, or change its permissions"
), text
print("done")
"""
)


def run_program(program: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


def run_on_small_disk(program: str, folder: Path) -> None:
    """Run with a disk of one MiB mounted on the folder, which nobody else sees and which goes away with the program."""
    mount = [
        "unshare",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs -o size=1m none "$1" && shift && "$@"',
    ]
    command = [*mount, "sh", str(folder), sys.executable, "-c", program, str(folder)]
    if shutil.which("unshare") is None or subprocess.run([*mount, "sh", str(folder), "true"], check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk (unshare)")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


def test_a_full_disk_leaves_the_last_checkpoint_and_goes_on_once_there_is_space(tmp_path: Path):
    run_on_small_disk(FULL_DISK, tmp_path)


def test_a_disk_that_became_read_only_is_named(tmp_path: Path):
    run_on_small_disk(READ_ONLY, tmp_path)


def test_a_limit_on_file_sizes_leaves_the_last_checkpoint(tmp_path: Path):
    run_program(FILE_LIMIT, tmp_path)


def test_a_folder_without_permission_is_named(tmp_path: Path):
    run_program(NO_PERMISSION, tmp_path)


def test_a_device_that_is_always_full_is_named(tmp_path: Path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunFolderError, match=r"cannot write .*metrics\.jsonl: No space left on device; free some disk"):
        Journal(tmp_path / "metrics.jsonl").append({"step": 1})


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path):
    (tmp_path / "runs").write_text("a file")
    match = r"Not a directory; a file is in the place of a folder; move it, or choose another path"
    with pytest.raises(RunFolderError, match=match):
        RunFolder.create(tmp_path / "runs", {}, {})
    with pytest.raises(RunFolderError, match=match):
        RunFolder.create(tmp_path / "runs" / "geo", {}, {})
    with pytest.raises(RunFolderError, match=match):
        Checkpoints(tmp_path / "runs").write(1, lambda folder: None)
    with pytest.raises(RunFolderError, match=match):
        write_groups(tmp_path / "runs" / "step_000001.jsonl.zst", [])
    with pytest.raises(RunFolderError, match=match):
        Journal(tmp_path / "runs" / "metrics.jsonl").append({})
    assert (tmp_path / "runs").read_text() == "a file"


def test_an_error_without_a_number_keeps_its_own_words(tmp_path: Path):
    def fail(_: Path) -> None:
        raise shutil.SameFileError("a and b are the same file")

    with pytest.raises(RunFolderError, match=r"step_000001: a and b are the same file; check that the disk works"):
        Checkpoints(tmp_path / "checkpoints").write(1, fail)


def test_errors_that_are_not_of_the_disk_pass_unchanged(tmp_path: Path):
    def fail(_: Path) -> None:
        raise RuntimeError("tensor of another device")

    with pytest.raises(RuntimeError, match="tensor of another device"):
        Checkpoints(tmp_path).write(1, fail)
