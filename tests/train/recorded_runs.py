"""Small runs on disk to look at afterwards, and environments that a second look finds out."""

from __future__ import annotations

from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console

from turnwise.console.screen import RunConsole
from turnwise.envs.base import Env, Info
from turnwise.recipe.loading import load_recipe
from turnwise.train.stages import train

RECIPE: dict[str, Any] = {
    "model": "pico",
    "env": {"id": "game/guess-number-easy", "check": False},
    "rollout": {"episodes": 8, "max_turns": 4, "max_tokens": 12},
    "train": {"steps": 3, "learning_rate": 5e-4, "critic_learning_rate": 1e-3},
    "eval": {"episodes": 0},
    "checkpoint": {"every": 1},
}


def make_run(folder: Path, **changes: Any) -> Path:
    """Train the small recipe with some sections changed."""
    console = RunConsole(form="quiet", out=Console(file=StringIO()))
    train(load_recipe(None, {**RECIPE, **changes}), folder, console=console)
    return folder


class Forgetful(Env):
    """Counts its episodes across instances, so that equal seeds do not give equal episodes; none earns anything."""

    _episodes = count()

    def reset(self, seed: int | None = None, task: Any = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        return f"Episode {next(self._episodes)}. Say anything.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        return "Well said.", 0.0, True, False, {}


class Duet(Env):
    """Two seats take turns at adding letters; the second earns what the first has said."""

    seats = ("first", "second")

    def reset(self, seed: int | None = None, task: Any = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        self.said, self.letter = list[str](), self.rng.choice("abcdefgh")
        return f"from {self.letter}", {"seat": "first"}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        self.said.append(action)
        seat = self.seats[len(self.said) % 2]
        rewards = {"second": float(len(self.said[0]))} if len(self.said) == 4 else {}
        return (
            f"from {self.letter} {len(self.said)}",
            0.0,
            len(self.said) == 4,
            False,
            {"seat": seat, "rewards": rewards},
        )
