"""Running a claim's study: starts first, then the runs whose scales others need, then all others as they can begin."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from turnwise.evaluate.results import read_result
from turnwise.evaluate.study import require_same_start
from turnwise.recipe.loading import differences, dump_recipe, load_recipe
from turnwise.recipe.schema import Recipe
from turnwise.reproduce.adaptation import adapted, note_settings, require_same_study
from turnwise.reproduce.claim import Claim
from turnwise.reproduce.demonstrations import write_slips
from turnwise.reproduce.plan import StudyRun, run_recipe, source_run, start_recipe, study_runs
from turnwise.reproduce.workers import Task, keep_numbers_only, run_tasks
from turnwise.runs.checkpoints import Checkpoints
from turnwise.runs.disk import write_whole
from turnwise.runs.reading import is_complete, read_whole_run
from turnwise.train.setup import choose_device
from turnwise.words import counted

RESULTS = "results.json"
Report = Callable[[str], None]


class Study:
    """A claim at one scale in one folder: `Study(claim, "cpu", Path("runs/st-ppo")).run(jobs=2, report=print)`."""

    def __init__(self, claim: Claim, scale: str, output: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.claim, self.scale, self.output = claim, adapted(claim, claim.scale(scale), settings or {}), output
        self._settings = settings or {}
        require_same_study(output, self._settings)
        self.runs = study_runs(self.scale)
        planned = set(self.runs)
        for run in self.runs:
            if (source := source_run(claim, run)) and source not in planned:
                raise ValueError(f"{run.name} takes over the scales of {source.name}, which is in no block of {scale}")

    def run(self, *, jobs: int, report: Report, minutes: float | None = None) -> dict[str, str]:
        """Run what is missing; returns what went wrong. After so many minutes no run is begun any more."""
        deadline = None if minutes is None else time.monotonic() + 60 * minutes
        queue = StudyQueue(self)
        if not len(queue):
            return {}
        note_settings(self.output, self._settings)
        report(f"{counted(len(queue), 'run')} to do, starts included, {jobs} at once")
        return run_tasks(queue, jobs=jobs, report=report, deadline=deadline)

    @property
    def device(self) -> str:
        """Where its runs compute."""
        return choose_device(self._start_recipe(self.runs[0].seed))

    def results(self) -> list[dict[str, Any]]:
        """The complete runs as rows: cell, seed, numbers and the curve of held-out success."""
        return [_row(run, folder) for run in self.runs if is_complete(folder := run.folder(self.output))]

    def write_results(self) -> list[dict[str, Any]]:
        """Write `results.json`, all that the verdict needs, and return its rows."""
        rows = self.results()
        self.output.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(row) for row in rows)
        write_whole(self.output / RESULTS, f"[\n{lines}\n]\n".encode())
        return rows

    def start_task(self, seed: int) -> Task | None:
        """The imitation of a seed; None when it is complete or the recipe has none."""
        folder, recipe, start = self._start(seed), self._start_recipe(seed), self.scale.start
        # Chats with slips are the study's own: their place says only how its folder was spelled.
        require_same_start(folder, recipe, besides=() if start.slips is None else ("sft.chats",))
        if recipe.sft is None or is_complete(folder):
            return None
        if start.slips is not None:
            folder.parent.mkdir(parents=True, exist_ok=True)
            chats, count = self._chats(seed), recipe.sft.demonstrations
            write_slips(chats, recipe.env, count=count, share=start.slips, seed=seed, slip=start.slip)
        return _task(f"start, seed {seed}", "sft", recipe, folder)

    def run_task(self, run: StudyRun) -> Task:
        """A run whose start and source are complete."""
        recipe = run_recipe(self.claim, self.scale, run, model=self._model(run.seed), output=self.output)
        return _task(run.name, "train", recipe, run.folder(self.output))

    def can_begin(self, run: StudyRun) -> bool:
        """Whether what the run needs is there."""
        source = source_run(self.claim, run)
        return self._has_start(run.seed) and (source is None or self._has_scales(source.folder(self.output)))

    def _start(self, seed: int) -> Path:
        return self.output / "start" / f"seed-{seed}"

    def _has_start(self, seed: int) -> bool:
        return is_complete(self._start(seed)) or self._start_recipe(seed).sft is None

    def _has_scales(self, folder: Path) -> bool:
        """Whether a run is complete and its scales, where it records them, are beside its journals."""
        # A process still has a moment's work with a run after the journals say that it has ended.
        return is_complete(folder) and not (folder / "checkpoints").exists()

    def _model(self, seed: int) -> str:
        """The folder of the seed's start, or the recipe's own model where nothing is imitated."""
        latest = Checkpoints(self._start(seed) / "checkpoints").latest()
        return str(latest) if latest is not None else self._start_recipe(seed).model.name

    @cache  # noqa: B019 - a study lives as long as its command
    def _start_recipe(self, seed: int) -> Recipe:
        return start_recipe(self.claim, self.scale, seed, chats=self._chats(seed))

    def _chats(self, seed: int) -> Path:
        return self._start(seed).with_name(f"seed-{seed}.jsonl")


class StudyQueue:
    """What is left of a study: a run waits for its start, a control for the run whose scales it takes over."""

    def __init__(self, study: Study) -> None:
        self._study = study
        seeds = sorted({run.seed for run in study.runs})
        self._starts = [task for seed in seeds if (task := study.start_task(seed))]
        needed = {source for run in study.runs if (source := source_run(study.claim, run))}
        self._runs: list[StudyRun] = []
        for run in sorted(study.runs, key=lambda run: run not in needed):
            folder = run.folder(study.output)
            if is_complete(folder):
                keep_numbers_only(folder)
                continue
            if (folder / "config.yaml").is_file() and study.can_begin(run):
                study.run_task(run)  # a cut run with other settings is a mistake to hear of now, not in an hour
            self._runs.append(run)

    def take(self) -> Task | None:
        """The first that can begin."""
        if self._starts:
            return self._starts.pop(0)
        run = next((run for run in self._runs if self._study.can_begin(run)), None)
        if run is None:
            return None
        self._runs.remove(run)
        return self._study.run_task(run)

    def __len__(self) -> int:
        return len(self._starts) + len(self._runs)

    def __iter__(self) -> Iterator[str]:
        return iter([*(task.name for task in self._starts), *(run.name for run in self._runs)])


def _task(name: str, stage: Any, recipe: Recipe, folder: Path) -> Task:
    """Write the run's recipe beside its folder; ValueError when the folder holds another run."""
    there = folder / "config.yaml"
    if stage == "train" and there.is_file() and (changes := differences(load_recipe(there), recipe)):
        raise ValueError(f"{folder} holds a run with other settings ({changes[0][:200]}); choose another --output")
    file = folder.with_name(f"{folder.name}.yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, dump_recipe(recipe).encode())
    return Task(name=name, stage=stage, recipe=file, folder=folder)


def _row(run: StudyRun, folder: Path) -> dict[str, Any]:
    result = asdict(read_result(folder))
    journals = read_whole_run(folder)
    curve = [[row["step"], row["eval/success"]] for row in journals.evals if row.get("eval/success") is not None]
    rate = [row["train/learning_rate"] for row in journals.metrics if "train/learning_rate" in row]
    del result["folder"]
    return {**asdict(run.cell), **result, "applied_rate": max(rate, default=None), "curve": curve}
