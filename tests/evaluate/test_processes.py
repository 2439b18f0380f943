import _thread
import fcntl
import subprocess
import sys
import threading
import time
from pathlib import Path

from turnwise.evaluate.processes import Job, run_jobs


def job(folder: Path, name: str, program: str) -> Job:
    return Job(name=name, command=[sys.executable, "-c", program], log=folder / f"{name}.log")


def test_a_job_that_fails_takes_no_other_with_it(tmp_path: Path):
    ended: dict[str, str] = {}
    jobs = [
        job(tmp_path, "bad", "print('first'); raise SystemExit('no such model')"),
        job(tmp_path, "killed", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
        job(tmp_path, "good", "import os; print(os.environ['OMP_NUM_THREADS'])"),
    ]
    assert run_jobs(jobs, at_once=2, done=lambda job, fault: ended.update({job.name: fault}))
    assert ended == {"bad": "exit code 1: no such model", "killed": "exit code -9: it said nothing", "good": ""}
    assert (tmp_path / "good.log").read_text() == "1\n"


def test_so_many_run_at_once_and_no_more(tmp_path: Path):
    meet = f"""
import pathlib, time
here = pathlib.Path({str(tmp_path)!r})
mine = here / (str(time.time_ns()) + ".running")
mine.touch(); time.sleep(0.3); print(len(list(here.glob("*.running")))); mine.unlink()
"""
    jobs = [job(tmp_path, str(number), meet) for number in range(5)]
    assert run_jobs(jobs, at_once=2, done=lambda *_: None)
    seen = [int((tmp_path / f"{number}.log").read_text()) for number in range(5)]
    assert max(seen) <= 2


def test_what_another_process_is_at_is_left_alone(tmp_path: Path):
    faults: list[str] = []
    with (tmp_path / "one.log").open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        assert run_jobs([job(tmp_path, "one", "print('twice')")], at_once=1, done=lambda _, fault: faults.append(fault))
    assert faults == ["another process is at it; wait for that one, or end it"]
    assert (tmp_path / "one.log").read_text() == ""


def test_a_process_that_outlives_its_parent_keeps_its_lock(tmp_path: Path):
    # As after a kill -9 of the study: its child goes on, and must not get company.
    start = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0)"
    with (tmp_path / "one.log").open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        parent = subprocess.Popen([sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=log)
        assert parent.stdin is not None
    parent.wait()
    faults: list[str] = []
    one = job(tmp_path, "one", "pass")
    run_jobs([one], at_once=1, done=lambda _, fault: faults.append(fault))
    assert "another process" in faults[0]
    parent.stdin.close()  # the child reads the end of its input, and ends
    deadline = time.monotonic() + 10
    while faults[-1] and time.monotonic() < deadline:
        run_jobs([one], at_once=1, done=lambda _, fault: faults.append(fault))
    assert faults[-1] == ""


def test_an_interrupt_lets_jobs_finish_what_they_do_and_starts_no_more(tmp_path: Path):
    polite = """
import signal, sys, time
def stop(*_):
    print("saved", flush=True)
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
time.sleep(30)
"""
    jobs = [job(tmp_path, "first", polite), job(tmp_path, "second", polite)]

    def interrupt() -> None:
        while "ready" not in (tmp_path / "first.log").read_text():
            time.sleep(0.02)
        _thread.interrupt_main()

    watcher = threading.Thread(target=interrupt)
    (tmp_path / "first.log").touch()
    watcher.start()
    assert not run_jobs(jobs, at_once=1, done=lambda *_: None)
    watcher.join()
    assert (tmp_path / "first.log").read_text() == "ready\nsaved\n"
    assert not (tmp_path / "second.log").exists()
