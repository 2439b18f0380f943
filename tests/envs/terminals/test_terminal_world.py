"""Private file trees: what a setup leaves, what a test sees, and what stays hidden."""

from __future__ import annotations

import secrets
import threading
import time
from pathlib import Path

import pytest

from tests.envs.terminals.sample_tasks import counting_task, needs_worlds, wait_until_gone, write_samples
from turnwise.envs.terminals.terminal_task import TerminalTask, read_tasks, write_task
from turnwise.envs.terminals.terminal_world import World, check_worlds
from turnwise.tools.sandbox import SandboxLimits, check_sandbox

PATIENT = 60.0


@needs_worlds
def test_a_world_is_as_its_setup_left_it_every_time():
    setup = "mkdir d; echo hidden > d/f; chmod 640 d/f; ln -s d/f link; touch -d 2020-02-02 old; mkdir -m 0 locked"
    look = "stat -c '%n %a %Y' d/f old locked; readlink link; cat link; rm -r d"
    for _ in range(2):
        with World.open(setup) as world:
            answer = world.shell().run(look, PATIENT).text.splitlines()
        assert answer[0].startswith("d/f 640 ")
        assert answer[1:] == ["old 644 1580601600", "locked 0 " + answer[2].split()[2], "d/f", "hidden"]


@needs_worlds
def test_a_test_sees_what_the_shell_left_and_reads_its_stdin():
    with World.open("mkdir a") as world:
        world.shell().run("cd a; echo 5 > n; echo 6 > /tmp/m; chmod 0 n; : > -x; : > $'new\\nline'", PATIENT)
        check = world.check(
            "import os, sys\nos.chmod('a/n', 0o600)\n"
            "print(open('a/n').read() + open('/tmp/m').read() + sys.stdin.read())\n"
            "print(sorted(os.listdir('a')))",
            "truth",
        )
        assert (check.ok, check.output) == (True, "5\n6\ntruth\n['-x', 'n', 'new\\nline']\n")
        assert not world.check("assert False").ok
        assert world.check("import os; assert oct(os.stat('a/n').st_mode)[-3:] == '000'").ok


@needs_worlds
def test_a_search_of_everything_finds_neither_truth_nor_test():
    task = counting_task(7)
    with World.open(task.setup) as world:
        shell = world.shell()
        places = "/home /tmp /etc /code /dev /var /run /srv /root /opt /mnt"
        # The brackets keep the search from finding itself.
        search = f"grep -rlsE 'swordfis[h]-7|json.loa[d].sys.stdin' {places} /proc/*/environ /proc/*/cmdline"
        assert shell.run(f"echo begin; {search}; env | grep swordfis[h]", PATIENT).text == "begin\n"
        world.check(task.final_test, '{"lines": 7, "secret": "swordfish-7"}')
        assert world.shell().run(search, PATIENT).text == ""


@needs_worlds
def test_the_agents_settings_do_not_reach_the_test():
    with World.open("") as world:
        world.shell().run(
            "echo 'import os; os._exit(0)' | tee sitecustomize.py usercustomize.py json.py os.py >/dev/null\n"
            "mkdir -p .local/lib/python3.11/site-packages; cp json.py .local/lib/python3.11/site-packages/\n"
            "export PYTHONPATH=/home/user PYTHONSTARTUP=/home/user/json.py LD_PRELOAD=/home/user/x.so PATH=/home/user",
            PATIENT,
        )
        assert not world.check("import json, os\nassert False").ok


@needs_worlds
def test_a_test_that_hangs_or_floods_fails():
    limits = SandboxLimits(wall_seconds=3.0, output_bytes=1000, processes=32)
    with World.open("", limits=limits) as world:
        assert not world.check("import time; time.sleep(600)").ok
        assert not world.check("while True: print('x' * 1000)").ok


@needs_worlds
@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ("echo broken; exit 3", "exit code 3.*broken"),
        ("if", "syntax error"),
        ("head -c 100000000 /dev/zero > f", "File size limit"),
    ],
)
def test_a_setup_that_fails_says_why(setup: str, message: str):
    with pytest.raises(ValueError, match=f"(?s)the setup failed.*{message}"):
        World.open(setup)


@needs_worlds
def test_sparse_files_do_not_fill_the_machine():
    with World.open("") as world:
        world.shell().run("for i in $(seq 50); do truncate -s 30M f$i; done; echo 1 > n", PATIENT)
        assert world.check("import os; assert os.path.getsize('f50') == 30 * 2**20 and open('n').read() == '1\\n'").ok


@needs_worlds
def test_a_world_starts_from_its_copy_in_milliseconds():
    """Processor time of the reset itself, since cores may be busy; bash comes up while the agent thinks.

    `benchmarks/envs.py` measures what a clock on the wall shows.
    """
    World.open("seq 100 > f").close()
    best = float("inf")
    for _ in range(20):
        begin = time.thread_time()
        with World.open("seq 100 > f") as world:
            world.shell()
            best = min(best, time.thread_time() - begin)
    assert best < 0.05


@needs_worlds
def test_worlds_leave_no_open_files_behind():
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    World.open("").close()
    before = count()
    for _ in range(3):
        with World.open("") as world:
            world.shell().run("echo", PATIENT)
            world.check("")
            world.shell()
    assert count() == before


@needs_worlds
def test_a_world_that_is_closed_while_it_starts_leaves_no_process_behind():
    limits = SandboxLimits(temp_bytes=2**22 + 4096 * secrets.randbelow(1000), processes=32)
    World.open("", limits=limits).close()
    for pause in range(12):
        with World.open("", limits=limits) as world:
            world.shell()
            time.sleep(pause / 2000)
    wait_until_gone(f"size={limits.temp_bytes},")


@needs_worlds
def test_worlds_work_from_threads():
    answers: list[bool] = []

    def play() -> None:
        with World.open("echo 1 > f") as world:
            answers.append(world.check("assert open('f').read() == '1\\n'").ok)

    threads = [threading.Thread(target=play) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 4


def test_without_bubblewrap_the_message_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for cached in (check_worlds, check_sandbox):
        cached.cache_clear()
    try:
        with pytest.raises(ValueError, match="apt install bubblewrap"):
            World.open("")
    finally:
        monkeypatch.undo()


def test_tasks_come_back_from_disk_as_they_were(tmp_path: Path):
    write_samples(tmp_path, 3)
    task = TerminalTask("a.b-1", "Ünïcode\n", {"x": [1, None]}, "a\n", "b", "c", folder="/app")
    write_task(tmp_path, task)
    assert read_tasks(tmp_path) == [task, *(counting_task(lines) for lines in (3, 4, 5))]
    assert TerminalTask.from_dict(task.as_dict()) == task


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "../up"}, "not a safe file name"),
        ({"truth": 3}, "truth must be an object"),
        ({"solution": "ls"}, "solution must be a list"),
        ({"complexity": True}, "complexity must be a whole number"),
        ({"folder": "/usr"}, "cannot start in '/usr'"),
        ({"folder": "/app/../etc"}, "cannot start in"),
        ({"extra": 1}, "must be a dict with the keys"),
    ],
)
def test_a_wrong_task_is_refused(change: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        TerminalTask.from_dict({**counting_task(3).as_dict(), **change})


def test_a_broken_folder_names_the_file(tmp_path: Path):
    with pytest.raises(ValueError, match="not a folder of terminal tasks"):
        read_tasks(tmp_path)
    place = write_task(tmp_path, counting_task(3))
    (place / "setup.sh").unlink()
    with pytest.raises(ValueError, match=r"count-3.*setup\.sh"):
        read_tasks(tmp_path)
    (place / "task.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="count-3"):
        read_tasks(tmp_path)
