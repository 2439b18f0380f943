"""A checkpoint is whole or does not count, whenever its writer was killed and whatever became of it since."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from turnwise.runs import Checkpoints, RunFolderError

SIZE = 20_000


def fill(step: int, folder: Path) -> None:
    """Files of which every byte tells the step."""
    (folder / "resume").mkdir()
    for name in ("model.safetensors", "resume/optimizer.safetensors", "resume/state.json"):
        (folder / name).write_bytes(bytes([step]) * SIZE)


def write_empty(path: Path) -> None:
    path.write_text("{}")


def write(checkpoints: Checkpoints, step: int) -> Path:
    return checkpoints.write(step, lambda folder: fill(step, folder))


def is_whole(checkpoint: Path, step: int) -> bool:
    """Told by the content alone, not by the manifest."""
    names = ("model.safetensors", "resume/optimizer.safetensors", "resume/state.json")
    return all((checkpoint / name).read_bytes() == bytes([step]) * SIZE for name in names)


def newest(folder: Path) -> int:
    """The step of the newest checkpoint. Each one that is there must be complete, and none skipped."""
    checkpoints = Checkpoints(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        latest = checkpoints.latest()
    assert latest == checkpoints.at(checkpoints.steps()[-1])
    assert all(is_whole(checkpoints.at(step), step) for step in checkpoints.steps())
    return checkpoints.steps()[-1]


def test_the_newest_is_found_and_each_can_be_asked_for(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.latest() is None
    assert checkpoints.steps() == []
    for step in (10, 2, 30):
        assert write(checkpoints, step) == tmp_path / "checkpoints" / f"step_{step:06d}"
    assert checkpoints.steps() == [2, 10, 30]
    assert newest(tmp_path / "checkpoints") == 30
    assert is_whole(checkpoints.at(10), 10)
    with pytest.raises(RunFolderError, match=r"step_000011: there is no such checkpoint; other .* here: 2, 10, 30"):
        checkpoints.at(11)


def test_the_manifest_has_size_and_digest_of_every_file(tmp_path: Path):
    path = Checkpoints(tmp_path).write(3, lambda folder: write_empty(folder / "config.json"))
    assert json.loads((path / "manifest.json").read_text()) == {
        "step": 3,
        "files": {
            "config.json": {
                "bytes": 2,
                "sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
            }
        },
    }


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (lambda path: flip(path / "model.safetensors"), "model.safetensors has changed since it was written"),
        (lambda path: flip(path / "resume" / "state.json"), "resume/state.json has changed since it was written"),
        (lambda path: (path / "resume" / "state.json").unlink(), "resume/state.json is missing"),
        (lambda path: cut(path / "model.safetensors"), "model.safetensors has changed since it was written"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda path: cut(path / "manifest.json"), "manifest.json is damaged"),
        (lambda path: (path / "manifest.json").write_text('{"step": 2, "files": {}}'), "manifest.json lists no files"),
        (lambda path: (path / "manifest.json").write_text("[]"), "manifest.json is damaged"),
        (lambda path: (path / "manifest.json").write_text("[" * 99_999), "manifest.json is damaged"),
        (lambda path: list_also(path, "/etc/hostname"), "manifest.json is damaged"),
        (lambda path: list_also(path, "../../thesis.txt"), "manifest.json is damaged"),
        (lambda path: shutil.copy(path.parent / "step_000001/manifest.json", path), "its manifest belongs to step 1"),
    ],
)
def test_a_broken_checkpoint_is_passed_over_and_reported(tmp_path: Path, harm, fault: str):
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 1)
    harm(write(checkpoints, 2))
    with pytest.warns(UserWarning, match=f"step_000002 is skipped: {fault}"):
        assert checkpoints.latest() == tmp_path / "step_000001"
    with pytest.raises(RunFolderError, match=f"cannot load .*step_000002: {fault}; other checkpoints here: 1"):
        checkpoints.at(2)


def list_also(path: Path, name: str) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": 1, "sha256": ""}
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ["zz.safetensors", "adapter_config.json", "resume/ahead.zst"])
def test_a_file_that_the_manifest_does_not_list_is_refused_and_nothing_is_passed_over(tmp_path: Path, name: str):
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 1)
    (write(checkpoints, 2) / name).write_bytes(b"other weights")
    for find in (checkpoints.latest, lambda: checkpoints.at(2), lambda: checkpoints.find(2)):
        with pytest.raises(RunFolderError, match=rf"{name} is not part of its checkpoint .*; remove it"):
            find()
    (tmp_path / "step_000002" / name).unlink()
    (tmp_path / "step_000002" / ".DS_Store").touch()  # nobody reads what is hidden
    assert checkpoints.latest() == tmp_path / "step_000002"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[SIZE // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_prune_keeps_the_newest_and_those_that_always_stay(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    for step in range(1, 7):
        write(checkpoints, step)
    checkpoints.prune(keep=2, always={3})
    assert checkpoints.steps() == [3, 5, 6]
    checkpoints.prune(keep=9)
    assert checkpoints.steps() == [3, 5, 6]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_step_that_is_written_again_is_replaced(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 1)
    checkpoints.write(1, lambda folder: write_empty(folder / "other.json"))
    assert sorted(path.name for path in checkpoints.at(1).iterdir()) == ["manifest.json", "other.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


def test_a_fill_that_fails_leaves_the_last_checkpoint_and_nothing_else(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 1)

    def fail(folder: Path) -> None:
        fill(2, folder)
        raise KeyError("optimizer")

    with pytest.raises(KeyError, match="optimizer"):
        checkpoints.write(2, fail)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]
    assert newest(tmp_path) == 1


def test_a_reader_leaves_the_draft_of_a_running_writer_alone(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)

    def look(folder: Path) -> None:
        fill(1, folder)
        reader = Checkpoints(tmp_path)
        assert reader.latest() is None
        assert reader.steps() == []

    assert is_whole(checkpoints.write(1, look), 1)


DIES_AT_EVERY_OPERATION = """
import itertools, os, shutil, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_checkpoints import fill, newest, write
from turnwise.runs import Checkpoints

base, work = Path(sys.argv[2], "base"), Path(sys.argv[2], "work")
write(Checkpoints(base), 1)
WATCHED = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}

def die_at(operation):
    seen = itertools.count(1)
    def watch(event, _):
        if event in WATCHED and next(seen) == operation:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(watch)

for operation in itertools.count(1):
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(base, work)
    child = os.fork()
    if child == 0:
        die_at(operation)
        write(Checkpoints(work), 2)
        Checkpoints(work).prune(keep=1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found = newest(work)
    write(Checkpoints(work), 3)  # a new writer goes on as if nothing had been
    assert newest(work) == 3 and not list(work.glob("*.draft"))
    print(found, flush=True)
    if os.WIFEXITED(status):
        sys.exit(os.WEXITSTATUS(status))
"""


def test_killed_at_every_file_operation_the_newest_is_whole(tmp_path: Path):
    command = [sys.executable, "-c", DIES_AT_EVERY_OPERATION, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    found = [int(line) for line in done.stdout.split()]
    assert found == sorted(found)
    assert set(found) == {1, 2}
    assert len(found) > 25  # operations at which the writer died


WRITES_ON = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_checkpoints import write
from turnwise.runs import Checkpoints
checkpoints = Checkpoints(Path(sys.argv[2]))
for step in range(len(checkpoints.steps()) and checkpoints.steps()[-1] + 1, 256):
    write(checkpoints, step)
    print(step, flush=True)
    checkpoints.prune(keep=2)
"""


def test_killed_at_random_moments_no_finished_checkpoint_is_lost(tmp_path: Path):
    draw = random.Random(5)
    command = [sys.executable, "-c", WRITES_ON, str(Path(__file__).parent), str(tmp_path)]
    for _ in range(4):
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        finished = int(writer.stdout.readline())
        time.sleep(draw.uniform(0, 0.05))
        writer.send_signal(signal.SIGKILL)
        rest, _ = writer.communicate(timeout=60)
        finished = max([finished, *map(int, rest.split())])
        assert newest(tmp_path) >= finished
