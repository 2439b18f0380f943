"""Harbor and Terminal-Bench folders: plain ones load as they are, others say why not."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path

import pytest

from tests.envs.terminals.sample_tasks import needs_worlds
from turnwise.envs import make
from turnwise.envs.terminals.harbor_tasks import read_harbor_task, read_harbor_tasks
from turnwise.envs.terminals.terminal_world import World

DATA = Path(__file__).parents[4] / "shared" / "data" / "terminal"
DOCKERFILE = """
# a comment
FROM ubuntu:24.04
RUN apt-get update && \\
    apt-get install -y grep bash && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY data/ ./data/
COPY note.txt /app/renamed.txt
RUN chmod 600 renamed.txt
CMD ["bash"]
"""
TEST = """
import pytest
from pathlib import Path

@pytest.mark.parametrize("name", ["a", "b"])
def test_count(name):
    if not Path("/app", name).exists():
        pytest.fail(f"{name} is missing")

class TestMore:
    def test_content(self):
        assert Path("/app/a").read_text() == "3\\n"
"""


def write_harbor(folder: Path, *, dockerfile: str = DOCKERFILE, test: str = TEST, settings: str = "") -> Path:
    files = {
        "task.toml": f'version = "1.0"\n{settings}\n',
        "instruction.md": "Copy things.\n",
        "environment/Dockerfile": dockerfile,
        "environment/data/numbers": "1\n2\n3\n",
        "environment/note.txt": "note\n",
        "solution/solve.sh": "#!/bin/bash\nset -e\ncd /app\ntail -n 1 data/numbers > a\ncp renamed.txt b\n",
        "tests/test_state.py": test,
        "tests/test.sh": "pytest /tests/test_state.py",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@needs_worlds
def test_a_plain_task_is_unsolved_at_first_and_solved_by_its_own_solution(tmp_path: Path):
    task = read_harbor_task(write_harbor(tmp_path / "copy"))
    assert (task.name, task.instruction, task.folder) == ("copy", "Copy things.", "/app")
    with World.open(task.setup, folder=task.folder) as world:
        assert not world.check(task.final_test, "{}").ok
        shell = world.shell()
        assert shell.run("pwd; stat -c %a renamed.txt", 60.0).text == "/app\n600\n"
        assert shell.run(task.solution[0], 60.0).code == 0
        check = world.check(task.final_test, json.dumps(dict(task.truth)))
        assert check.ok, check.output


def test_equal_folders_are_equal_tasks_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = read_harbor_task(write_harbor(tmp_path / "copy"))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600.0)
    assert read_harbor_task(tmp_path / "copy") == first


RUNS = r"""
FROM ubuntu:24.04
WORKDIR /app
RUN for name in a b; do echo "$name;  end" > $name; done
RUN mkdir inner && \
    cd inner && touch there
RUN apt-get update ; apt-get install -y bash && touch plain
"""


@needs_worlds
def test_commands_of_an_image_run_as_they_are_each_in_a_shell_of_its_own(tmp_path: Path):
    task = read_harbor_task(write_harbor(tmp_path / "copy", dockerfile=RUNS))
    with World.open(task.setup, folder=task.folder) as world:
        assert world.shell().run("ls; cat a", 60.0).text == "a\nb\ninner\nplain\na;  end\n"
    broken = read_harbor_task(write_harbor(tmp_path / "copy", dockerfile=f"{RUNS}RUN false && true\nRUN true\n"))
    with pytest.raises(ValueError, match="the setup failed"):
        World.open(broken.setup, folder=broken.folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dockerfile": "FROM nvidia/cuda:12"}, "starts from nvidia/cuda:12"),
        ({"dockerfile": "FROM ubuntu:24.04\nRUN pip install numpy"}, "needs a network to run `pip install numpy`"),
        ({"dockerfile": "FROM ubuntu:24.04\nRUN apt-get install -y no-such-package"}, "installs no-such-package"),
        ({"dockerfile": "FROM ubuntu:24.04\nCOPY note.txt /etc/note.txt"}, "writes to /etc/note.txt"),
        ({"dockerfile": "FROM ubuntu:24.04\nCOPY ../x /app/x"}, "from outside of its folder"),
        ({"dockerfile": "FROM ubuntu:24.04\nCOPY nothing /app/x"}, "which is not there"),
        ({"dockerfile": "FROM ubuntu:24.04\nUSER postgres"}, "the instruction USER"),
        ({"dockerfile": 'FROM ubuntu:24.04\nENTRYPOINT ["/serve"]'}, "starts a program of its own"),
        ({"settings": "[[steps]]\nname = 'one'"}, "asks for steps"),
        ({"settings": "[environment]\ngpus = 1"}, "asks for gpus"),
        ({"test": "import numpy\ndef test_x(): pass"}, "imports numpy"),
        ({"test": "import pytest\n@pytest.fixture\ndef x(): pass"}, "uses pytest.fixture"),
        ({"test": "def"}, "invalid syntax"),
    ],
)
def test_a_task_that_needs_more_is_refused_with_the_reason(tmp_path: Path, change: dict[str, str], reason: str):
    with pytest.raises(ValueError, match=f"copy: .*{reason}"):
        read_harbor_task(write_harbor(tmp_path / "copy", **change))


def test_one_warning_names_the_tasks_of_a_folder_that_cannot_run(tmp_path: Path):
    write_harbor(tmp_path / "plain")
    write_harbor(tmp_path / "cuda", dockerfile="FROM nvidia/cuda:12")
    with pytest.warns(UserWarning, match=r"1 task.*cuda: its image starts from"):
        assert [task.name for task in read_harbor_tasks(tmp_path)] == ["plain"]


@needs_worlds
def test_tasks_with_a_canary_are_in_the_test_split_alone(tmp_path: Path):
    for name in "abcdef":
        write_harbor(tmp_path / name, dockerfile=f"# terminal-bench-canary GUID 0\n{DOCKERFILE}")
    assert len(make("terminal/tasks", tasks=str(tmp_path), split="test").list_tasks() or []) == 6
    with pytest.raises(ValueError, match="belongs to the split train; they are all in test"):
        make("terminal/tasks", tasks=str(tmp_path))


@needs_worlds
@pytest.mark.skipif(not DATA.is_dir(), reason="the task folders are not beside the repository")
@pytest.mark.parametrize(
    "name",
    [
        "harbor_converted/log-summary",
        "harbor_converted/bank-trans-filter",
        "harbor_cookbook/simple-task",
        "harbor_cookbook/multi-reward",
        "openthoughts_fewshots/regex-log",
        "tb1_original/hello-world",
    ],
)
def test_public_tasks_are_solved_by_their_solutions_alone(name: str):
    """Some of those that load; `python -m tests.torture --only harbor` takes all."""
    task = read_harbor_task(DATA / name)
    with World.open(task.setup, folder=task.folder) as world:
        assert not world.check(task.final_test, "{}").ok
        world.shell().run(task.solution[0], 60.0)
        assert world.check(task.final_test, "{}").ok


@pytest.mark.skipif(not DATA.is_dir(), reason="the task folders are not beside the repository")
def test_most_public_tasks_with_a_plain_image_load():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tasks = read_harbor_tasks(DATA / "harbor_converted")
    assert {"hello-world", "log-summary", "git-leak-recovery"} <= {task.name for task in tasks}
