"""Running a claim's study: starts first, then the runs whose scales others need, then all others."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from turnwise.evaluate.results import is_complete, read_result
from turnwise.evaluate.study import require_same_start
from turnwise.reproduce.claim import Claim
from turnwise.reproduce.demonstrations import write_slips
from turnwise.reproduce.plan import StudyRun, run_recipe, source_run, start_recipe, study_runs
from turnwise.reproduce.workers import Task, keep_numbers_only, run_tasks
from turnwise.runs.checkpoints import Checkpoints
from turnwise.runs.disk import write_whole
from turnwise.runs.journal import read_journal
from turnwise.train.config import Recipe
from turnwise.train.recipes import differences, dump_recipe, load_recipe

RESULTS = "results.json"
Report = Callable[[str], None]


class Study:
    """A claim at one scale in one folder: `Study(claim, "cpu", Path("runs/st-ppo")).run(jobs=2, report=print)`."""

    def __init__(self, claim: Claim, scale: str, output: Path) -> None:
        self.claim, self.scale, self.output = claim, claim.scale(scale), output
        self.runs = study_runs(self.scale)

    def run(self, *, jobs: int, report: Report, minutes: float | None = None) -> dict[str, str]:
        """Run what is missing; returns what went wrong. After so many minutes no run is begun any more."""
        deadline = None if minutes is None else time.monotonic() + 60 * minutes
        seeds = sorted({run.seed for run in self.runs})
        needed = {source for run in self.runs if (source := source_run(self.claim, run))}
        waves: list[Callable[[], list[Task]]] = [
            lambda: self._start_tasks(seeds),
            lambda: self._tasks([run for run in self.runs if run in needed]),
            lambda: self._tasks([run for run in self.runs if run not in needed]),
        ]
        faults: dict[str, str] = {}
        for make_tasks in waves:
            if tasks := make_tasks():
                report(f"{len(tasks)} runs to do, {jobs} at once")
                faults |= run_tasks(tasks, jobs=jobs, report=report, deadline=deadline)
        return faults

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

    def _start_tasks(self, seeds: Sequence[int]) -> list[Task]:
        tasks: list[Task] = []
        for seed in seeds:
            folder = self._start(seed)
            chats = folder.with_name(f"{folder.name}.jsonl")
            recipe = start_recipe(self.claim, self.scale, seed, chats=chats)
            slips = self.scale.start.slips
            # Chats with slips are the study's own: their place says only how its folder was spelled.
            require_same_start(folder, recipe, besides=() if slips is None else ("sft.chats",))
            if recipe.sft is None or is_complete(folder):
                continue
            if slips is not None:
                folder.parent.mkdir(parents=True, exist_ok=True)
                write_slips(chats, recipe.env, count=recipe.sft.demonstrations, share=slips, seed=seed)
            tasks.append(_task(f"start, seed {seed}", "sft", recipe, folder))
        return tasks

    def _tasks(self, runs: Sequence[StudyRun]) -> list[Task]:
        """Of the runs that are not complete, those whose start and source are."""
        tasks: list[Task] = []
        for run in runs:
            folder, source = run.folder(self.output), source_run(self.claim, run)
            if is_complete(folder):
                keep_numbers_only(folder)
            elif self._has_start(run.seed) and (source is None or is_complete(source.folder(self.output))):
                model = self._model(run.seed)
                recipe = run_recipe(self.claim, self.scale, run, model=model, output=self.output)
                tasks.append(_task(run.name, "train", recipe, folder))
        return tasks

    def _start(self, seed: int) -> Path:
        return self.output / "start" / f"seed-{seed}"

    def _has_start(self, seed: int) -> bool:
        return is_complete(self._start(seed)) or load_recipe(self.claim.folder / self.scale.recipe).sft is None

    def _model(self, seed: int) -> str:
        """The folder of the seed's start, or the recipe's own model where nothing is imitated."""
        latest = Checkpoints(self._start(seed) / "checkpoints").latest()
        return str(latest) if latest is not None else load_recipe(self.claim.folder / self.scale.recipe).model.name


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
    evaluations = read_journal(folder / "evals.jsonl")
    curve = [[row["step"], row["eval/success"]] for row in evaluations if row.get("eval/success") is not None]
    rate = [
        row["train/learning_rate"] for row in read_journal(folder / "metrics.jsonl") if "train/learning_rate" in row
    ]
    del result["folder"]
    return {**asdict(run.cell), **result, "applied_rate": max(rate, default=None), "curve": curve}
