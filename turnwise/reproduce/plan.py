"""Which runs a claim takes, and the recipe of each. Equal cells of different blocks are one run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from turnwise.recipe.layers import join, read_layers
from turnwise.recipe.loading import load_recipe
from turnwise.recipe.schema import Recipe
from turnwise.reproduce.claim import Cells, Claim, StudyScale
from turnwise.reproduce.expert_pairs import fill_in
from turnwise.runs.journal import read_journal

FACTORS = "factors.json"
"""The scales that a run applied, update by update, beside its journals."""
_REPLAYED = "turnwise.reproduce.replayed_scales:ReplayedScale"


@dataclass(frozen=True, kw_only=True, order=True)
class Cell:
    """One cell of the study's table: the settings that its seeds share."""

    arm: str
    rate: float
    updates: int
    lag: int = 0

    @property
    def folder(self) -> str:
        """`st-ppo/lr=0.0025,updates=16,lag=0`."""
        return f"{self.arm}/lr={self.rate:g},updates={self.updates},lag={self.lag}"


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One run: a cell on a seed, and on a task if the scale has several."""

    cell: Cell
    seed: int
    task: str = ""

    @property
    def name(self) -> str:
        """The display name."""
        return f"{self.task} {self.cell.folder.replace('/', ' ')}, seed {self.seed}".lstrip()

    def folder(self, output: Path) -> Path:
        """Its run folder."""
        return output / "runs" / self.task / self.cell.folder / f"seed-{self.seed}"


def stress_cell(scale: StudyScale, arm: str) -> Cell:
    """The arm's cell in the stress test."""
    return Cell(arm=arm, rate=scale.rate, updates=scale.updates)


def block_cells(scale: StudyScale, block: Cells) -> Iterator[Cell]:
    """The cells of a block, the arms of one setting side by side."""
    for lag in block.lags:
        for updates in block.updates or [scale.updates]:
            for rate in block.rates or [scale.rate]:
                for arm in block.arms:
                    yield Cell(arm=arm, rate=rate, updates=updates, lag=lag)


def study_runs(scale: StudyScale) -> list[StudyRun]:
    """All runs without duplicates, by block; one seed of every cell before the next seed."""
    found: dict[StudyRun, None] = {}
    for block in scale.blocks.values():
        count = min(block.seeds or scale.seeds, scale.seeds)
        cells = [(task, cell) for task in scale.tasks or [""] for cell in block_cells(scale.on(task), block)]
        for seed in range(scale.first_seed, scale.first_seed + count):
            found |= dict.fromkeys(StudyRun(cell=cell, seed=seed, task=task) for task, cell in cells)
    return list(found)


def source_run(claim: Claim, run: StudyRun) -> StudyRun | None:
    """The run whose scales this one needs."""
    source = claim.arms[run.cell.arm].source
    if source is None:
        return None
    cell = Cell(arm=source, rate=run.cell.rate, updates=run.cell.updates, lag=run.cell.lag)
    return StudyRun(cell=cell, seed=run.seed, task=run.task)


def run_recipe(
    claim: Claim, scale: StudyScale, run: StudyRun, *, model: str, output: Path, pairs: Path | None = None
) -> Recipe:
    """The run's recipe; `model` is its start, `pairs` its preferences. What it needs from another run must exist.

    The scale is that of the run's task.
    """
    choice, cell = claim.arms[run.cell.arm], run.cell
    algorithm = {**choice.settings.get("algorithm", {}), **_passes(scale, cell, choice.epoch_share)}
    rate = cell.rate * choice.rate_share
    source = source_run(claim, run)
    if source is not None and choice.matched is not None:
        rate *= mean_scale(source.folder(output))
    if source is not None and choice.permuted is not None:
        algorithm["scale"] = {"kind": _REPLAYED, "factors": _permuted(source.folder(output), run.seed)}
    train = {**choice.settings.get("train", {}), "learning_rate": rate}
    overrides = {
        **choice.settings,
        "algorithm": algorithm,
        "train": train,
        "seed": run.seed,
        "name": f"{cell.arm}-seed-{run.seed}",
        "model": {"name": model},
        "sft": None,
    }
    return _load(claim, scale, overrides if pairs is None else fill_in(overrides, pairs))


def start_recipe(claim: Claim, scale: StudyScale, seed: int, *, chats: Path) -> Recipe:
    """The recipe of a seed's imitation."""
    # Its curve is not needed, and it has many more steps than a run.
    overrides: dict[str, Any] = {"seed": seed, "name": f"start-seed-{seed}", "eval": {"every": 0}}
    if scale.start.model is not None:
        overrides["model"] = {"name": scale.start.model.format(seed=seed)}
    if scale.start.slips is not None:
        overrides["sft"] = {"chats": str(chats)}
    return _load(claim, scale, overrides)


def mean_scale(folder: Path) -> float:
    """The mean scale of a run, weighted by each step's learning rate: how much its path was shortened."""
    rows = [row for row in read_journal(folder / "metrics.jsonl") if row.get("train/scale") is not None]
    weight = sum(row["train/learning_rate"] for row in rows)
    return sum(row["train/scale"] * row["train/learning_rate"] for row in rows) / weight


def _passes(scale: StudyScale, cell: Cell, share: float) -> dict[str, int]:
    """Epochs and minibatches that make the cell's number of updates."""
    minibatches = min(scale.minibatches, cell.updates)
    epochs, rest = divmod(cell.updates, minibatches)
    if rest:
        raise ValueError(f"{cell.updates} updates are not whole passes of {minibatches} minibatches; change either")
    return {"epochs": max(1, round(epochs * share)), "minibatches": minibatches, "max_lag": cell.lag}


def _permuted(folder: Path, seed: int) -> list[float]:
    factors: list[float] = json.loads((folder / FACTORS).read_text())
    return Random(f"permuted:{seed}").sample(factors, len(factors))


def _load(claim: Claim, scale: StudyScale, overrides: dict[str, Any]) -> Recipe:
    """Settings of the scale below those of the run."""
    settings = join([*read_layers(None, scale.settings), *read_layers(None, overrides)])
    return load_recipe(claim.folder / scale.recipe, settings)
