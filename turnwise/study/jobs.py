"""The runs of a study: what each waits for, its recipe, and running it to completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from turnwise.recipe.loading import differences, dump_recipe, load_recipe
from turnwise.recipe.schema import Recipe
from turnwise.runs.disk import write_whole
from turnwise.runs.reading import is_complete

START = "start"
"""The folder of the starts: the imitation of each seed, which all arms share."""
INTERRUPTED = "interrupted; it goes on when the study does"
Stage = Literal["sft", "train", "table"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run to complete: its recipe in a file, and its folder."""

    name: str
    stage: Stage
    recipe: Path
    folder: Path

    @property
    def log(self) -> Path:
        """The file beside its folder that its output is appended to."""
        return self.folder.with_name(f"{self.folder.name}.log")


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run of a study, new or to be resumed."""

    name: str
    folder: Path
    make_recipe: Callable[[], Recipe]
    """Called once the run is ready: a recipe may name what other runs produced."""
    stage: Stage = "train"
    is_ready: Callable[[], bool] = lambda: True

    def job(self) -> Job:
        """Write the recipe beside the folder; ValueError if the folder holds a run with another one."""
        recipe, file = self.make_recipe(), self.folder.with_name(f"{self.folder.name}.yaml")
        if self.stage == "train":
            require_same_recipe(self.folder, recipe)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, dump_recipe(recipe).encode())
        return Job(name=self.name, stage=self.stage, recipe=file, folder=self.folder)


class StudyQueue:
    """The remaining runs of a study, in order: a run waits until its inputs exist."""

    def __init__(self, runs: Iterable[PlannedRun]) -> None:
        self._runs = [run for run in runs if not is_complete(run.folder)]
        for run in self._runs:
            if (run.folder / "config.yaml").is_file() and run.is_ready():
                run.job()  # report an interrupted run with other settings now, not in an hour

    def take(self) -> Job | None:
        """Take the first run that can begin now; None if there is none."""
        run = next((run for run in self._runs if run.is_ready()), None)
        if run is None:
            return None
        self._runs.remove(run)
        return run.job()

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[str]:
        """The names of the waiting runs."""
        return iter([run.name for run in self._runs])


def perform(job: Job) -> str:
    """Complete a run; returns what went wrong."""
    import torch
    from rich.console import Console

    from turnwise.console.screen import RunConsole
    from turnwise.train.stages import imitate, resume, train

    with RunConsole(form="plain", out=Console(width=120)) as console:
        try:
            if (job.folder / "meta.json").is_file():
                resume(job.folder, console=console)
            else:
                (imitate if job.stage == "sft" else train)(load_recipe(job.recipe), job.folder, console=console)
        except torch.OutOfMemoryError:
            return "the GPU's memory was too small; call again, with fewer --jobs"
        finally:
            _free_gpu()
    return "" if is_complete(job.folder) else INTERRUPTED


def _free_gpu() -> None:
    """Free the run's GPU memory: the process lives on, and others share the GPU."""
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


def require_same_recipe(folder: Path, wanted: Recipe) -> None:
    """ValueError if the folder holds a run of another recipe."""
    if (folder / "config.yaml").is_file():
        _refuse(folder, "run", differences(load_recipe(folder / "config.yaml"), wanted))


def require_same_start(folder: Path, wanted: Recipe, *, besides: Sequence[str] = ()) -> None:
    """ValueError if the folder holds the imitation of a recipe that differs in more than the settings `besides`."""
    if not (folder / "config.yaml").is_file():
        return
    from turnwise.sources.imitation import sft_recipe  # here, because it imports torch

    there = load_recipe(folder / "config.yaml")
    stage = wanted if wanted.sft is None else sft_recipe(wanted, steps=there.train.steps)
    # The name is the first algorithm's, and their order does not matter.
    ignored = ("name", *besides)
    _refuse(folder, START, [each for each in differences(there, stage) if each.partition(":")[0] not in ignored])


def _refuse(folder: Path, what: str, changes: Sequence[str]) -> None:
    if changes:
        raise ValueError(
            f"{folder} holds a {what} with other settings ({', '.join(changes)[:200]}); choose another --output, or "
            "remove that folder"
        )
