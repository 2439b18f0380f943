"""Jobs in processes: no fault takes another job with it, and however a study ends, it leaves no process behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.study.performers import by_name, queue
from turnwise.study.processes import run_jobs

PROGRAM = """
import sys
from pathlib import Path
from tests.study.performers import by_name, queue
from turnwise.study.processes import run_jobs

if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    try:
        run_jobs(queue(Path(folder), *names), by_name, jobs=2, report=lambda text: print(text, flush=True))
    except KeyboardInterrupt:
        sys.exit(130)
"""


def wait_until(happened, seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.02)
    return happened()


def words(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # a dead child of a dead parent may wait for its grave


def start(folder: Path, *names: str) -> subprocess.Popen[bytes]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen([sys.executable, str(program), str(folder), *names], env=environment)


def test_a_job_that_fails_takes_no_other_with_it(tmp_path: Path):
    said: list[str] = []
    names = ("bad", "broken", "killed", "good-1", "good-2")
    faults = run_jobs(queue(tmp_path, *names), by_name, jobs=1, report=said.append)
    assert faults == {
        "bad": "no such model; choose another",
        "broken": "exit code 1: ZeroDivisionError: a bug",
        "killed": "its process was killed, most likely for its memory; call again, with fewer --jobs",
    }
    assert said[-1] == "good-2: complete (0 to go)"
    assert said[0] == f"bad: no such model; choose another (4 to go; log {tmp_path / 'bad.log'})"
    first, second = words(tmp_path / "good-1.log"), words(tmp_path / "good-2.log")
    assert first[0] == "1"  # one thread
    assert first[1] == second[1]  # in one process, one after the other


def test_so_many_run_at_once_and_no_more(tmp_path: Path):
    assert run_jobs(queue(tmp_path, *(f"good-{n}" for n in range(5))), by_name, jobs=2, report=lambda _: None) == {}
    seen = [int(words(tmp_path / f"good-{number}.log")[2]) for number in range(5)]
    assert max(seen) <= 2


def test_after_the_deadline_nothing_is_begun(tmp_path: Path):
    said: list[str] = []
    past = time.monotonic() - 1
    assert run_jobs(queue(tmp_path, "good"), by_name, jobs=1, report=said.append, deadline=past) == {}
    assert said == ["the time is up; 1 run left"]
    assert not (tmp_path / "good.log").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_study_that_is_told_to_end_lets_its_jobs_save_and_begins_no_more(tmp_path: Path, number: signal.Signals):
    study = start(tmp_path, "polite-1", "polite-2", "good")
    logs = [tmp_path / "polite-1.log", tmp_path / "polite-2.log"]
    assert wait_until(lambda: all("ready" in words(log) for log in logs))
    study.send_signal(number)
    assert study.wait(120) == 130
    for log in logs:
        assert words(log)[2:] == ["saved"]
        assert not lives(int(words(log)[1]))
    assert not (tmp_path / "good.log").exists()


def test_a_second_signal_kills_jobs_that_do_not_listen(tmp_path: Path):
    study = start(tmp_path, "deaf")
    assert wait_until(lambda: "ready" in words(tmp_path / "deaf.log"))
    study.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    study.send_signal(signal.SIGTERM)
    assert study.wait(120) == 130
    assert not lives(int(words(tmp_path / "deaf.log")[1]))


def test_the_processes_of_a_study_that_is_killed_save_and_end(tmp_path: Path):
    study = start(tmp_path, "polite")
    assert wait_until(lambda: "ready" in words(tmp_path / "polite.log"))
    study.kill()
    study.wait()
    assert wait_until(lambda: "saved" in words(tmp_path / "polite.log"))
    assert wait_until(lambda: not lives(int(words(tmp_path / "polite.log")[1])))
