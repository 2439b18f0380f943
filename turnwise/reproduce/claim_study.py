"""The study of a claim: its starts, its runs, the controls that replay other runs' scales, and its results."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from turnwise.evaluate.results import over_policies, read_result
from turnwise.recipe.schema import Recipe
from turnwise.reproduce.adaptation import adapted, note_settings, require_same_study
from turnwise.reproduce.claim import Claim
from turnwise.reproduce.conclusion import conclude
from turnwise.reproduce.expert_pairs import write_pairs
from turnwise.reproduce.plan import FACTORS, StudyRun, run_recipe, source_run, start_recipe, study_runs
from turnwise.reproduce.slips import write_slips
from turnwise.reproduce.verdict import Judgement
from turnwise.runs.checkpoints import Checkpoints
from turnwise.runs.disk import write_whole
from turnwise.runs.reading import is_complete, read_whole_run
from turnwise.study.jobs import START, Job, PlannedRun, StudyQueue, perform, require_same_start
from turnwise.study.processes import run_jobs
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
        """Run what is missing; returns what went wrong. After `minutes` no new run starts."""
        deadline = None if minutes is None else time.monotonic() + 60 * minutes
        for run in self.runs:
            if is_complete(folder := run.folder(self.output)):
                keep_numbers_only(folder)  # in case a kill came before that
        queue = StudyQueue(self.planned())
        if not len(queue):
            return {}
        note_settings(self.output, self._settings)
        report(f"{counted(len(queue), 'run')} to do, starts included, {jobs} at once")
        return run_jobs(queue, perform_for_numbers, jobs=jobs, report=report, deadline=deadline)

    @property
    def device(self) -> str:
        """The device of its runs."""
        return choose_device(self._start_recipe(self.runs[0].task, self.runs[0].seed))

    def results(self) -> list[dict[str, Any]]:
        """The complete runs as rows: cell, task, seed, numbers and the curve of held-out success."""
        return [_row(run, folder) for run in self.runs if is_complete(folder := run.folder(self.output))]

    def write_results(self) -> list[dict[str, Any]]:
        """Write `results.json`, all that the verdict needs, and return its rows."""
        rows = self.results()
        self.output.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(row) for row in rows)
        write_whole(self.output / RESULTS, f"[\n{lines}\n]\n".encode())
        return rows

    def conclude(self, rows: list[dict[str, Any]]) -> list[Judgement]:
        """Write verdict and figure; returns the findings."""
        return conclude(self.claim, self.scale, rows, self.output)

    def planned(self) -> list[PlannedRun]:
        """Starts first, then the runs whose scales others need, then all others; complete ones too."""
        needed = {source for run in self.runs if (source := source_run(self.claim, run))}
        ordered = sorted(self.runs, key=lambda run: run not in needed)
        return [*self._planned_starts(), *map(self._planned_run, ordered)]

    def _planned_starts(self) -> Iterator[PlannedRun]:
        # The study writes its own chats with slips; their path only shows how its folder was spelled.
        for task, seed in sorted(dict.fromkeys((run.task, run.seed) for run in self.runs), key=lambda start: start[1]):
            own = () if self.scale.on(task).start.slips is None else ("sft.chats",)
            folder, recipe = self._start(task, seed), self._start_recipe(task, seed)
            require_same_start(folder, recipe, besides=own)
            if recipe.sft is not None:
                make, name = partial(self._make_start_recipe, task, seed), f"{task} {START}, seed {seed}".lstrip()
                yield PlannedRun(name=name, stage="sft", folder=folder, make_recipe=make)

    def _make_start_recipe(self, task: str, seed: int) -> Recipe:
        """The recipe of a seed's imitation, with its demonstrations written."""
        recipe, start = self._start_recipe(task, seed), self.scale.on(task).start
        if start.slips is not None and recipe.sft is not None:
            chats = self._chats(task, seed)
            chats.parent.mkdir(parents=True, exist_ok=True)
            count = recipe.sft.demonstrations
            write_slips(chats, recipe.env, count=count, share=start.slips, seed=seed, slip=start.slip)
        return recipe

    def _planned_run(self, run: StudyRun) -> PlannedRun:
        return PlannedRun(
            name=run.name,
            folder=run.folder(self.output),
            make_recipe=partial(self._run_recipe, run),
            is_ready=partial(self._can_begin, run),
        )

    def _run_recipe(self, run: StudyRun) -> Recipe:
        task, seed, pairs = run.task, run.seed, self._make_pairs(run.task, run.seed)
        imitated = self.claim.arms[run.cell.arm].from_start
        model = self._model(task, seed) if imitated else self._start_recipe(task, seed).model.name
        return run_recipe(self.claim, self.scale.on(run.task), run, model=model, output=self.output, pairs=pairs)

    def _can_begin(self, run: StudyRun) -> bool:
        """Whether the run's inputs exist."""
        source = source_run(self.claim, run)
        return self._has_start(run.task, run.seed) and (source is None or self._has_scales(source.folder(self.output)))

    def _start(self, task: str, seed: int) -> Path:
        return self.output / START / task / f"seed-{seed}"

    def _has_start(self, task: str, seed: int) -> bool:
        return is_complete(self._start(task, seed)) or self._start_recipe(task, seed).sft is None

    def _has_scales(self, folder: Path) -> bool:
        """Whether a run is complete and its scales, if it records them, are beside its journals."""
        # A process still works on a run for a moment after the journals say it has ended.
        return is_complete(folder) and not (folder / "checkpoints").exists()

    def _model(self, task: str, seed: int) -> str:
        """The folder of the seed's start, or the recipe's model if nothing is imitated."""
        latest = Checkpoints(self._start(task, seed) / "checkpoints").latest()
        return str(latest) if latest is not None else self._start_recipe(task, seed).model.name

    @cache  # noqa: B019 - a study lives as long as its command
    def _start_recipe(self, task: str, seed: int) -> Recipe:
        return start_recipe(self.claim, self.scale.on(task), seed, chats=self._chats(task, seed))

    def _chats(self, task: str, seed: int) -> Path:
        return self._start(task, seed).with_name(f"seed-{seed}.jsonl")

    def _make_pairs(self, task: str, seed: int) -> Path | None:
        """The file of the seed's preferences, written on first use."""
        wanted = self.scale.on(task).start.pairs
        if wanted is None:
            return None
        if wanted.path is not None:
            return Path(wanted.path)
        file = self._start(task, seed).with_name(f"seed-{seed}-pairs.jsonl")
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            env = self._start_recipe(task, seed).env
            write_pairs(file, env, count=wanted.count, noise=wanted.noise, seed=seed)
        return file


def perform_for_numbers(job: Job) -> str:
    """Complete a run, and keep what the verdict and the controls need."""
    fault = perform(job)
    if not fault and job.stage == "train":
        keep_numbers_only(job.folder)
    return fault


def keep_numbers_only(folder: Path) -> None:
    """Delete the models of a run but keep the scales that a control replays. Safe to call twice."""
    latest, factors = Checkpoints(folder / "checkpoints").latest(), folder / FACTORS
    # After an interrupted removal the newest checkpoint may be an older one, so keep what is already written.
    if latest is not None and not factors.exists():
        learners = [*json.loads((latest / "resume" / "state.json").read_text())["learners"].values()]
        scale = learners[0]["scale"] if len(learners) == 1 else None  # no control replays those of several policies
        if scale is not None and "factors" in scale:
            write_whole(factors, json.dumps(scale["factors"]).encode())
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def _row(run: StudyRun, folder: Path) -> dict[str, Any]:
    result = asdict(read_result(folder))
    journals = read_whole_run(folder)
    evaluations = over_policies(journals.evals)
    curve = [[row["step"], row["eval/success"]] for row in evaluations if row.get("eval/success") is not None]
    # With several policies each has its own, under its name.
    rate = [row[name] for row in journals.metrics for name in row if name.endswith("train/learning_rate")]
    del result["folder"]
    return {
        **asdict(run.cell),
        "task": run.task,
        **result,
        "applied_rate": max(rate, default=None),
        "curve": curve,
        "first": _of_all(evaluations[:1], max),
        "last": _of_all(evaluations[-1:], max),
        "peak": _of_all(evaluations, max),
        "mean": _of_all(journals.metrics, fmean),
    }


def _of_all(rows: Sequence[Mapping[str, Any]], summarize: Callable[[list[float]], float]) -> dict[str, float]:
    """Each metric of some rows as one number, without those that say nothing of the policy."""
    names = dict.fromkeys(name for row in rows for name in row if not name.startswith(("time/", "step")))
    found = {name: [row[name] for row in rows if isinstance(row.get(name), int | float)] for name in names}
    return {name: round(summarize(values), 6) for name, values in found.items() if values}
