"""A study: several algorithms on equal seeds, each run a process of its own. Called again, it goes on where it was."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnwise.evaluate.processes import Job, run_jobs
from turnwise.recipe.loading import differences, dump_recipe, load_recipe
from turnwise.recipe.schema import Recipe
from turnwise.runs.disk import write_whole
from turnwise.runs.folder import RunFolder
from turnwise.runs.reading import is_complete
from turnwise.trust import is_trusting

_EQUAL = ("device", "model", "env", "rollout", "sft", "eval", "train.steps")
"""What the arms of a study have in common: the start, the tasks, the amount of data and the examination."""
_START = "start"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One algorithm of a study: `Arm(label="ppo-slow", overrides={"algorithm": "ppo", "train": {...}})`."""

    label: str
    overrides: Mapping[str, Any]

    @property
    def folder(self) -> str:
        """The label as the name of a folder."""
        return re.sub(r"[^\w.,=+-]+", "-", self.label).strip(".-")


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a study and where it lies."""

    label: str
    recipe: Recipe
    folder: Path

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.label}, seed {self.recipe.seed}"


@dataclass(kw_only=True)
class StudyOutcome:
    """What became of a study's runs."""

    folders: dict[str, list[Path]]
    """Complete runs by label."""
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """What went wrong, by name of the run."""
    interrupted: bool = False


def plan_study(recipe: str | Path | None, arms: Sequence[Arm], *, seeds: int, output: Path) -> list[PlannedRun]:
    """All runs, a seed of every arm before the next seed; ValueError when the arms cannot be compared."""
    folders = [arm.folder for arm in arms]
    if wrong := [name for name in folders if name in ("", _START) or folders.count(name) > 1]:
        raise ValueError(f"every algorithm needs a name of its own, got {wrong[0]!r}; leave one out, or rename it")
    planned = [
        PlannedRun(
            label=arm.label,
            recipe=load_recipe(recipe, {**arm.overrides, "seed": seed, "name": f"{arm.folder}-seed-{seed}"}),
            folder=output / arm.folder / f"seed-{seed}",
        )
        for seed in range(seeds)
        for arm in arms
    ]
    for run in planned[1 : len(arms)]:
        _require_equal_terms(planned[0], run)
    return planned


def run_study(planned: Sequence[PlannedRun], *, output: Path, jobs: int, report: Callable[[str], None]) -> StudyOutcome:
    """Run what is not complete yet, `jobs` at once, and say what became of each run.

    Where the recipe has an imitation stage, all arms of a seed start from one and the same imitation.
    """
    outcome = StudyOutcome(folders={run.label: [] for run in planned})
    planned = _from_common_starts(planned, outcome, output=output, jobs=jobs, report=report)
    if outcome.interrupted:
        return outcome
    for run in planned:
        _require_same_recipe(run)
    _run_all("train", planned, outcome, jobs=jobs, report=report)
    for run in planned:
        if is_complete(run.folder):
            outcome.folders[run.label].append(run.folder)
    return outcome


def require_same_start(folder: Path, wanted: Recipe, *, besides: Sequence[str] = ()) -> None:
    """ValueError when the folder holds the imitation of a recipe that differs in more than the settings `besides`."""
    if not (folder / "config.yaml").is_file():
        return
    from turnwise.sources.imitation import sft_recipe  # here, because it imports torch

    there = load_recipe(folder / "config.yaml")
    stage = wanted if wanted.sft is None else sft_recipe(wanted, steps=there.train.steps)
    # The name is that of the first algorithm, and which one comes first does not matter.
    ignored = ("name", *besides)
    changes = [change for change in differences(there, stage) if change.partition(":")[0] not in ignored]
    if changes:
        raise ValueError(
            f"{folder} holds a start with other settings ({changes[0][:200]}); choose another --output, or remove "
            "that folder"
        )


def _require_equal_terms(first: PlannedRun, other: PlannedRun) -> None:
    for change in differences(first.recipe, other.recipe):
        key = change.partition(":")[0]
        if any(key == equal or key.startswith(f"{equal}.") for equal in _EQUAL):
            raise ValueError(
                f"{first.label} and {other.label} differ in {change}; a comparison needs equal starts, tasks and "
                "amounts of data: set it for all of them"
            )


def _require_same_recipe(run: PlannedRun) -> None:
    if (run.folder / "config.yaml").is_file():
        changes = differences(load_recipe(run.folder / "config.yaml"), run.recipe)
        if changes:
            raise ValueError(
                f"{run.folder} holds a run with other settings ({', '.join(changes)}); choose another --output, or "
                "remove that folder"
            )


def _from_common_starts(
    planned: Sequence[PlannedRun],
    outcome: StudyOutcome,
    *,
    output: Path,
    jobs: int,
    report: Callable[[str], None],
) -> list[PlannedRun]:
    """The runs with their imitation done: once for each seed, as it does not depend on the algorithm."""
    first_of_seed = {run.recipe.seed: run for run in reversed(planned) if run.recipe.sft is not None}
    starts = {
        seed: PlannedRun(label=_START, recipe=run.recipe, folder=output / _START / f"seed-{seed}")
        for seed, run in sorted(first_of_seed.items())
    }
    for start in starts.values():
        require_same_start(start.folder, start.recipe)
    _run_all("sft", list(starts.values()), outcome, jobs=jobs, report=report)
    return [
        _started(run, start) if (start := starts.get(run.recipe.seed)) else run
        for run in planned
        if run.recipe.seed not in starts or is_complete(starts[run.recipe.seed].folder)
    ]


def _started(run: PlannedRun, start: PlannedRun) -> PlannedRun:
    """The run with the imitated model in the place of the model and the imitation."""
    weights = RunFolder.open(start.folder).checkpoints.latest()
    assert weights is not None, "a complete run ends with a checkpoint"
    model = run.recipe.model.model_copy(update={"name": str(weights)})
    recipe = run.recipe.model_copy(update={"sft": None, "model": model})
    return PlannedRun(label=run.label, recipe=recipe, folder=run.folder)


def _run_all(
    command: str,
    planned: Sequence[PlannedRun],
    outcome: StudyOutcome,
    *,
    jobs: int,
    report: Callable[[str], None],
) -> None:
    """Bring these runs to their end; those that are there already are left alone."""
    runs = {run.name: run for run in planned if not is_complete(run.folder)}
    left = len(runs)
    if left < len(planned):
        report(f"{len(planned) - left} of {len(planned)} runs are complete already")

    def done(job: Job, fault: str) -> None:
        nonlocal left
        left -= 1
        if not is_complete(runs[job.name].folder):  # a run that the guard stopped is complete, and has a code too
            outcome.failed[job.name] = fault or "it ended without a last word"
        report(f"{job.name}: {outcome.failed.get(job.name, 'complete')} ({left} to go; log {job.log})")

    if not run_jobs([_job(command, run) for run in runs.values()], at_once=jobs, done=done):
        outcome.interrupted = True


def _job(command: str, run: PlannedRun) -> Job:
    recipe_file = run.folder.with_name(f"{run.folder.name}.yaml")
    recipe_file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(recipe_file, dump_recipe(run.recipe).encode())
    begun = (run.folder / "meta.json").is_file()
    what = ["resume", str(run.folder)] if begun else [command, str(recipe_file), "--output", str(run.folder)]
    what += ["--trust"] if is_trusting() else []
    return Job(
        name=run.name,
        command=[sys.executable, "-m", "turnwise", *what, "--plain"],
        log=run.folder.with_name(f"{run.folder.name}.log"),
    )
