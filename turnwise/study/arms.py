"""The arms of a comparison: several algorithms on equal seeds, and the runs that they take."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from turnwise.recipe.loading import differences, load_recipe
from turnwise.recipe.schema import Recipe
from turnwise.runs.folder import RunFolder
from turnwise.runs.reading import is_complete
from turnwise.study.jobs import START, PlannedRun, StudyQueue, perform, require_same_recipe, require_same_start
from turnwise.study.processes import run_jobs

_EQUAL = ("device", "model", "env", "rollout", "sft", "eval", "train.steps")
"""What the arms of a study share: the start, the tasks, the amount of data and the evaluation."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One algorithm of a comparison: `Arm(label="ppo-slow", overrides={"algorithm": "ppo", "train": {...}})`."""

    label: str
    overrides: Mapping[str, Any]

    @property
    def folder(self) -> str:
        """The label as a folder name."""
        return re.sub(r"[^\w.,=+-]+", "-", self.label).strip(".-")


@dataclass(frozen=True, kw_only=True)
class ArmRun:
    """An arm on one seed: its recipe, which may start with imitation, and its folder."""

    label: str
    recipe: Recipe
    folder: Path

    @property
    def name(self) -> str:
        """The display name."""
        return f"{self.label}, seed {self.recipe.seed}"


@dataclass(kw_only=True)
class StudyOutcome:
    """The outcome of a comparison's runs."""

    folders: dict[str, list[Path]]
    """Complete runs by label."""
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """What went wrong, by name of the run."""


def plan_arms(recipe: str | Path | None, arms: Sequence[Arm], *, seeds: int, output: Path) -> list[ArmRun]:
    """All runs, one seed of every arm before the next seed; ValueError if the arms cannot be compared."""
    folders = [arm.folder for arm in arms]
    if wrong := [name for name in folders if name in ("", START) or folders.count(name) > 1]:
        raise ValueError(f"every algorithm needs a unique name, got {wrong[0]!r}; leave one out, or rename it")
    planned = [
        ArmRun(
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


def run_arms(planned: Sequence[ArmRun], *, output: Path, jobs: int, report: Callable[[str], None]) -> StudyOutcome:
    """Run what is not complete yet, `jobs` in parallel, and return each run's outcome.

    If the recipe has an imitation stage, all arms of a seed start from the same imitation.
    """
    starts = _starts(planned, output)
    runs = [_planned(run, starts.get(run.recipe.seed)) for run in planned]
    for run in runs:
        if run.is_ready():
            require_same_recipe(run.folder, run.make_recipe())
    if done := sum(is_complete(run.folder) for run in runs):
        report(f"{done} of {len(runs)} runs are complete already")
    failed = run_jobs(StudyQueue([*starts.values(), *runs]), perform, jobs=jobs, report=report)
    outcome = StudyOutcome(folders={run.label: [] for run in planned}, failed=failed)
    for run in planned:
        if is_complete(run.folder):
            outcome.folders[run.label].append(run.folder)
    return outcome


def _starts(planned: Sequence[ArmRun], output: Path) -> dict[int, PlannedRun]:
    """The imitation of each seed, which does not depend on the algorithm."""
    first_of_seed = {run.recipe.seed: run.recipe for run in reversed(planned) if run.recipe.sft is not None}
    starts: dict[int, PlannedRun] = {}
    for seed, recipe in sorted(first_of_seed.items()):
        folder = output / START / f"seed-{seed}"
        require_same_start(folder, recipe)
        starts[seed] = PlannedRun(
            name=f"{START}, seed {seed}", stage="sft", folder=folder, make_recipe=partial(_itself, recipe)
        )
    return starts


def _planned(run: ArmRun, start: PlannedRun | None) -> PlannedRun:
    if start is None:
        return PlannedRun(name=run.name, folder=run.folder, make_recipe=partial(_itself, run.recipe))
    return PlannedRun(
        name=run.name,
        folder=run.folder,
        make_recipe=partial(_started, run.recipe, start.folder),
        is_ready=partial(is_complete, start.folder),
    )


def _itself(recipe: Recipe) -> Recipe:
    return recipe


def _started(recipe: Recipe, start: Path) -> Recipe:
    """The recipe with the imitated model in place of its model and imitation stage."""
    weights = RunFolder.open(start).checkpoints.latest()
    assert weights is not None, "a complete run ends with a checkpoint"
    return recipe.model_copy(update={"sft": None, "model": recipe.model.model_copy(update={"name": str(weights)})})


def _require_equal_terms(first: ArmRun, other: ArmRun) -> None:
    for change in differences(first.recipe, other.recipe):
        key = change.partition(":")[0]
        if any(key == equal or key.startswith(f"{equal}.") for equal in _EQUAL):
            raise ValueError(
                f"{first.label} and {other.label} differ in {change}; a comparison needs equal starts, tasks and "
                "amounts of data: set it for all of them"
            )
