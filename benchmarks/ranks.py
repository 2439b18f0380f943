"""Two replicas on two cores against one process on one core: `OMP_NUM_THREADS=1 python benchmarks/ranks.py`.

Both train the shipped recipe with the same episodes and tokens in each step; seconds are medians over steps after a
warm-up. Run it on an idle machine: the pairs alternate, so that both see the same load.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
PHASES = {"time/rollout": "playing", "time/score": "scoring", "time/update": "learning"}
WARM_UP = 2
"""Steps that are not counted."""


def work(folder: Path, changes: list[str]) -> None:
    """One rank: train on a core of its own, and note how long it met the others."""
    from turnwise.cli.common import parse_settings
    from turnwise.torch_ranks import TorchRanks, join
    from turnwise.train import load_recipe, train

    rank, cores = int(os.environ.get("RANK", "0")), sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    train(load_recipe(ROOT / "recipes/search-nano.yaml", parse_settings(changes)), folder)
    ranks = join()
    met = ranks.meeting_seconds if isinstance(ranks, TorchRanks) else 0.0
    (folder / f"met-{ranks.rank}.json").write_text(json.dumps(met))


def measure(size: int, folder: Path, changes: list[str]) -> dict[str, float]:
    """Seconds of each phase of a step, and of a rank's meetings; tokens, to show that the work is the same."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"] if size > 1 else []
    command = [sys.executable, *launcher, __file__, "--work", str(folder), *changes]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    rows: list[dict[str, Any]] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seconds = {key: median(row[key] for row in rows[WARM_UP:]) for key in ("time/step", *PHASES)}
    seconds["other"] = seconds["time/step"] - sum(seconds[key] for key in PHASES)
    seconds["met"] = fmean(json.loads(file.read_text()) for file in folder.glob("met-*.json")) / len(rows)
    seconds["tokens"] = median(row["train/tokens"] for row in rows[WARM_UP:])
    return seconds


def show(one: dict[str, float], two: dict[str, float]) -> None:
    """The table, and where the time above one half of each phase goes."""
    table = Table("seconds of a step", "one", "two", "speed-up", box=None)
    for key, name in {**PHASES, "other": "other", "time/step": "step"}.items():
        table.add_row(name, f"{one[key]:.2f}", f"{two[key]:.2f}", f"{one[key] / two[key]:.2f}" if two[key] > 0 else "")
    table.add_row("of it ranks waiting for each other", "", f"{two['met']:.2f}", "")
    table.add_row("tokens", f"{one['tokens']:.0f}", f"{two['tokens']:.0f}", "")
    console = Console()
    console.print(table)
    above = {name: two[key] - one[key] / 2 for key, name in {**PHASES, "other": "other"}.items()}
    lost = two["time/step"] - one["time/step"] / 2
    worst = max(above, key=lambda name: above[name])
    console.print(f"Two replicas are {one['time/step'] / two['time/step']:.2f} times as fast as one.")
    console.print(f"Above one half: {lost:.2f} s a step, most of it in {worst} ({above[worst]:.2f} s).")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("changes", nargs="*", help="changes to the recipe, such as algorithm=grpo")
    chosen = parser.parse_args()
    if chosen.work is not None:
        work(chosen.work, chosen.changes)
        return
    fixed = ["env.check=false", "eval.episodes=0", "checkpoint.every=1000", f"train.steps={chosen.steps}"]
    found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory(prefix="turnwise-ranks-") as folder:
        for pair in range(chosen.pairs):
            for size, measured in found.items():
                measured.append(measure(size, Path(folder) / f"{pair}-{size}", [*fixed, *chosen.changes]))
    one, two = ({key: median(row[key] for row in rows) for key in rows[0]} for rows in found.values())
    show(one, two)


if __name__ == "__main__":
    main()
