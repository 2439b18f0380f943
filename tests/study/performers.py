"""What the processes of a study do in tests; they import it by name."""

import os
import signal
import time
from pathlib import Path

from turnwise.recipe.loading import load_recipe
from turnwise.study.jobs import INTERRUPTED, Job, PlannedRun, StudyQueue


def queue(folder: Path, *names: str) -> StudyQueue:
    """Jobs of these names, in this order."""
    return StudyQueue(
        PlannedRun(name=name, folder=folder / name, make_recipe=lambda: load_recipe(None)) for name in names
    )


def by_name(job: Job) -> str:
    """Do what the first word of the job's name says."""
    return {
        "good": _tell,
        "bad": _refuse,
        "broken": _raise,
        "killed": _die,
        "polite": _wait_and_save,
        "deaf": _wait_for_ever,
    }[job.name.split("-")[0]](job)


def _tell(job: Job) -> str:
    print(os.environ["OMP_NUM_THREADS"], os.getpid(), flush=True)
    mine = job.folder.with_name(f"{job.name}.running")
    mine.touch()
    time.sleep(0.1)
    print(len(list(mine.parent.glob("*.running"))), "at once", flush=True)
    mine.unlink()
    return ""


def _refuse(job: Job) -> str:
    raise ValueError("no such model; choose another")


def _raise(job: Job) -> str:
    raise ZeroDivisionError("a bug")


def _die(job: Job) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def _wait_and_save(job: Job) -> str:
    asked: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    print("ready", os.getpid(), flush=True)
    deadline = time.monotonic() + 30
    while not asked and time.monotonic() < deadline:
        time.sleep(0.02)
    print("saved", flush=True)
    return INTERRUPTED


def _wait_for_ever(job: Job) -> str:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", os.getpid(), flush=True)
    time.sleep(600)
    return ""
