"""Runs in a few processes that live long: hundreds of short runs must not each wait for torch to load."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from turnwise.evaluate.processes import ONE_THREAD
from turnwise.reproduce.plan import FACTORS
from turnwise.runs.checkpoints import Checkpoints
from turnwise.runs.disk import write_whole
from turnwise.runs.reading import is_complete
from turnwise.words import counted

_RUNS_PER_PROCESS = 50


@dataclass(frozen=True, kw_only=True)
class Task:
    """A run to be brought to its end: its recipe in a file, and its folder."""

    name: str
    stage: Literal["sft", "train"]
    recipe: Path
    folder: Path


class TaskQueue(Protocol):
    """Tasks in the order of their weight, some of which need others to be complete first."""

    def take(self) -> Task | None:
        """The next task that can begin now, which leaves the queue; None when there is none."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[str]:
        """The names of those that still wait."""
        ...


def run_tasks(
    queue: TaskQueue, *, jobs: int, report: Callable[[str], None], deadline: float | None = None
) -> dict[str, str]:
    """Run what the queue gives, `jobs` at once; returns what went wrong by name. After the deadline none is begun."""
    os.environ.update(ONE_THREAD)  # the processes inherit it
    running, faults = dict[Future[str], Task](), dict[str, str]()
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=_RUNS_PER_PROCESS) as pool:
            while True:
                while len(running) < jobs and not _is_past(deadline) and (task := queue.take()):
                    running[pool.submit(perform, task)] = task
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    task = running.pop(future)
                    if fault := future.result():
                        faults[task.name] = fault
                    report(f"{task.name}: {fault or 'complete'} ({len(queue) + len(running)} to go)")
    except BrokenProcessPool as error:
        raise ValueError(
            "a process of the study was killed, most likely for its memory; call again, with fewer --jobs"
        ) from error
    if len(queue) and _is_past(deadline):
        report(f"the time is up; {counted(len(queue), 'run')} left")
    elif len(queue):
        faults |= dict.fromkeys(queue, "what it starts from failed, or was interrupted")
    return faults


def _is_past(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline


def perform(task: Task) -> str:
    """One run from its beginning, or from where it was cut; returns what went wrong. A process of the pool calls it."""
    import torch
    from rich.console import Console

    from turnwise.console.screen import RunConsole
    from turnwise.recipe.loading import load_recipe
    from turnwise.train.stages import imitate, resume, train

    begun = (task.folder / "meta.json").is_file()
    task.folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        task.folder.with_name(f"{task.folder.name}.log").open("a") as log,
        RunConsole(form="quiet", out=Console(file=log, width=120)) as console,
    ):
        try:
            if begun:
                resume(task.folder, console=console)
            else:
                (imitate if task.stage == "sft" else train)(load_recipe(task.recipe), task.folder, console=console)
        except ValueError as error:
            return str(error)
        except torch.OutOfMemoryError:
            return "the GPU's memory was too small; call again, with fewer --jobs"
        finally:
            _free_gpu()
    if not is_complete(task.folder):
        return "interrupted; it goes on when the study does"
    if task.stage == "train":
        keep_numbers_only(task.folder)
    return ""


def _free_gpu() -> None:
    """Give back what the run held: the process lives on, and others share the GPU with it."""
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


def keep_numbers_only(folder: Path) -> None:
    """Hundreds of models are of no use to anyone; the scales that a control replays are. Safe to call twice."""
    latest, factors = Checkpoints(folder / "checkpoints").latest(), folder / FACTORS
    # Where a removal was cut, the newest checkpoint may be an older one: what is written already stays.
    if latest is not None and not factors.exists():
        scale = json.loads((latest / "resume" / "state.json").read_text())["learner"]["scale"]
        if scale is not None and "factors" in scale:
            write_whole(factors, json.dumps(scale["factors"]).encode())
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
