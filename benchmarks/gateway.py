"""What a user's own program costs as agent: `python benchmarks/gateway.py [--steps 3] [--rounds 2] [--episodes 256]`.

Trains the nano model on `search/geo-2hop` with the built-in loop and with `examples/agents/search_agent.py:run`, which
does the same through the `openai` client and HTTP, with a new client for each episode. Both take turns in one process
and start from the same weights. The first step of each run warms up. Seconds are medians over the other steps; on a
busy machine the CPU seconds, which include those of the programs' process, are the steadier measure. All episodes of a
step are played at once.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from turnwise.console.screen import RunConsole
from turnwise.recipe.loading import load_recipe
from turnwise.runs.journal import read_journal
from turnwise.train.stages import train

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "turnwise" / "recipes" / "search-nano.yaml"
AGENT = ROOT / "examples" / "agents" / "search_agent.py"
SIDES = {"built in": "search/geo-2hop", "gateway": f"{AGENT}:run"}
SHOWN = ("rollout/turns", "rollout/success", "time/step", "time/rollout")


class Clock(RunConsole):
    """A console that only notes wall and CPU seconds at the end of each step."""

    def __init__(self) -> None:
        super().__init__(form="quiet", out=Console(stderr=True))
        self.ticks: list[tuple[float, float]] = []

    def step(self, row: Mapping[str, Any], *, guard: str = "") -> None:
        """A step is over."""
        super().step(row, guard=guard)
        self.ticks.append((time.perf_counter(), cpu_seconds()))


def cpu_seconds() -> float:
    """CPU time of this process and of those that it has started and that still run."""
    ticks = 0
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            ticks += sum(map(int, Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def measure(env: str, folder: Path, *, steps: int, episodes: int, seed: int) -> list[dict[str, float]]:
    """One run: a row for each step after the first."""
    settings = {
        "seed": seed,
        "env": {"id": env, "check": False},
        "rollout": {"episodes": episodes, "concurrency": episodes},
        "train": {"steps": steps + 1},
        "eval": {"episodes": 0},
        "checkpoint": {"every": 1000},
    }
    clock = Clock()
    train(load_recipe(RECIPE, settings), folder, console=clock)
    rows = read_journal(folder / "metrics.jsonl")[1:]
    spent = [{"cpu": after[1] - before[1]} for before, after in pairwise(clock.ticks)]
    return [{**{name: row[name] for name in SHOWN}, **own} for row, own in zip(rows, spent, strict=True)]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(asked.rounds):
            for side, env in SIDES.items():
                folder = Path(scratch) / f"{number}-{side.replace(' ', '-')}"
                found[side] += measure(env, folder, steps=asked.steps, episodes=asked.episodes, seed=number)
    show(found)


def show(found: Mapping[str, list[dict[str, float]]]) -> None:
    """One line for each side, and what the gateway costs."""
    table = Table("", "turns", "success", "step s", "rollout s", "CPU s/step", box=None)
    middle = {side: {name: median(row[name] for row in rows) for name in rows[0]} for side, rows in found.items()}
    for side, row in middle.items():
        success = fmean(each["rollout/success"] for each in found[side])
        times = (row["rollout/turns"], success, row["time/step"], row["time/rollout"], row["cpu"])
        table.add_row(side, *(f"{value:.3g}" for value in times))
    Console().print(table)
    wall, cpu = (middle["gateway"][name] / middle["built in"][name] - 1 for name in ("time/step", "cpu"))
    print(f"overhead of the gateway: {wall:+.1%} wall, {cpu:+.1%} CPU a step")


if __name__ == "__main__":
    main()
