"""Runs a small recipe in child processes that kill themselves at chosen moments, and resumes it until it is done.

    python -m tests.train.killed_runs FOLDER '[["playing", 2, 0.05], ["saving", 3, 0.0]]' '{"algorithm": "st-ppo"}'

Each moment is (phase, how often it was entered before, seconds into it). The phase `recorded` begins with a step's row
in the journal: an exchange comes next. The imports are shared by forking.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from turnwise.console.screen import RunConsole
from turnwise.recipe.loading import load_recipe
from turnwise.train.stages import resume, train

RECIPE: dict[str, Any] = {
    "env": {"id": "game/guess-number-easy", "check": False},
    "rollout": {"episodes": 8, "max_turns": 4, "max_tokens": 12},
    "train": {"steps": 6, "learning_rate": 5e-4, "critic_learning_rate": 1e-3},
    "eval": {"episodes": 4, "every": 3},
    "checkpoint": {"every": 2},
}


class Deadly(RunConsole):
    """A console under which the process dies: by SIGKILL, some time into a phase."""

    def __init__(self, phase: str, times: int, delay: float) -> None:
        super().__init__(form="quiet", out=Console(file=open(os.devnull, "w")))  # noqa: SIM115
        self._fatal, self._left, self._delay = phase, times, delay

    def phase(self, name: str) -> None:
        super().phase(name)
        self._enter(name)

    def step(self, row: Mapping[str, Any], *, guard: str = "") -> None:
        super().step(row, guard=guard)
        self._enter("recorded")

    def _enter(self, name: str) -> None:
        if name != self._fatal:
            return
        if self._left == 0:
            threading.Thread(target=self._die, daemon=True).start()
        self._left -= 1

    def _die(self) -> None:
        time.sleep(self._delay)
        os.kill(os.getpid(), signal.SIGKILL)


def run(folder: Path, recipe: dict[str, Any], console: RunConsole) -> None:
    """Start the run, or carry on with it."""
    if (folder / "meta.json").is_file():
        resume(folder, console=console)
    else:
        train(load_recipe(None, recipe), folder, console=console)


def in_child(folder: Path, recipe: dict[str, Any], console: RunConsole) -> int:
    """Run in a forked child; returns how it ended (negative: the signal that killed it)."""
    child = os.fork()
    if child == 0:
        try:
            run(folder, recipe, console)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    folder, moments, changes = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
    recipe = {**RECIPE, **changes}
    codes = [in_child(folder, recipe, Deadly(*moment)) for moment in moments]
    codes.append(in_child(folder, recipe, Deadly("never", 0, 0.0)))
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
