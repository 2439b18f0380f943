"""Whole runs of the pico model in a second or two: recipes, consoles that listen, and what the run folder says."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from turnwise.console.screen import RunConsole
from turnwise.recipe.loading import load_recipe
from turnwise.recipe.schema import Recipe
from turnwise.rollout.episode import EpisodeSpec, tries
from turnwise.runs.ledger import read_groups
from turnwise.sources.cursor import Cursor, sampling_plan
from turnwise.train.stages import resume, train
from turnwise.types import Group, Trajectory

ENVS = "tests.train.small_envs"
_SMALL: dict[str, Any] = {
    "model": "pico",
    "env": {"id": f"{ENVS}:Say", "check": False},
    "algorithm": "rebn",
    "rollout": {"episodes": 16, "max_turns": 4, "max_tokens": 4},
    "engine": {"memory_gib": 0.05},
    "train": {"steps": 4, "learning_rate": 5e-3, "critic_learning_rate": 5e-3},
    "eval": {"episodes": 0},
    "checkpoint": {"every": 2},
}


def small_recipe(changes: Mapping[str, Any] | None = None) -> Recipe:
    """The small recipe with changes, section by section."""
    chosen = dict(_SMALL)
    for key, value in (changes or {}).items():
        mergeable = isinstance(value, Mapping) and isinstance(chosen.get(key), Mapping)
        chosen[key] = {**chosen[key], **value} if mergeable else value
    return load_recipe(None, chosen)


def step_specs(recipe: Recipe, step: int) -> list[EpisodeSpec]:
    """The episodes of a step, as long as nothing has been measured."""
    cursor, size = Cursor(recipe), sampling_plan(recipe.algorithm).tries
    return [spec for task in cursor.draw(step) for spec in tries(task, size)]


class Screen(RunConsole):
    """A console whose text can be read afterwards."""

    def __init__(self) -> None:
        self.file = io.StringIO()
        super().__init__(form="plain", out=Console(file=self.file, width=200))

    @property
    def text(self) -> str:
        return self.file.getvalue()


class Stopping(Screen):
    """Breaks off without a word to anybody when a step is done, as a lost machine would."""

    def __init__(self, *, after: int) -> None:
        super().__init__()
        self.after = after

    def step(self, row: Mapping[str, Any], *, guard: str = "") -> None:
        super().step(row, guard=guard)
        if row["step"] == self.after:
            raise LostMachineError


class LostMachineError(Exception):
    """The machine was lost."""


def run(folder: Path, changes: Mapping[str, Any] | None = None, *, console: RunConsole | None = None) -> dict[str, Any]:
    """Train from the beginning, or carry on."""
    console = console or Screen()
    if (folder / "meta.json").is_file():
        return resume(folder, console=console)
    return train(small_recipe(changes), folder, console=console)


def rows(folder: Path, journal: str = "metrics") -> list[dict[str, Any]]:
    """The rows of a journal."""
    return [json.loads(line) for line in (folder / f"{journal}.jsonl").read_text().splitlines()]


def timeless(folder: Path, journal: str = "metrics") -> list[dict[str, Any]]:
    """The rows of a journal without what the clock says."""
    return [
        {name: value for name, value in row.items() if not name.startswith("time")} for row in rows(folder, journal)
    ]


def played(folder: Path, step: int) -> list[Group]:
    """The groups of a step, from the ledger."""
    return read_groups(folder / "rollouts" / f"step_{step:06d}.jsonl.zst")


def trajectories(groups: list[Group]) -> list[Trajectory]:
    """All of them, in order."""
    return [trajectory for group in groups for trajectory in group.trajectories]


def tensors(checkpoint: Path) -> dict[str, bytes]:
    """Every byte of a checkpoint's tensors."""
    return {str(file.relative_to(checkpoint)): file.read_bytes() for file in sorted(checkpoint.rglob("*.safetensors"))}


def last_tensors(folder: Path) -> dict[str, bytes]:
    """Those of the newest checkpoint."""
    return tensors(max((folder / "checkpoints").glob("step_*")))
