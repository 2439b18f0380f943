"""What an engine in another process costs: `python benchmarks/remote.py [--steps 4] [--rounds 2]`.

Trains the recipe of `make train` in one process and against `turnwise engine serve` on this machine, by turns, with
equal threads. Seconds are medians over steps after the first of each run; "publish" is what a step takes besides
playing, scoring and updating. The server idles while the trainer learns and the other way round, so on a busy machine
the CPU seconds per step (trainer and server together) are the steadier measure. Both sides must sample the same tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from turnwise.runs.ledger import read_groups

RECIPE = Path(__file__).parents[1] / "turnwise" / "recipes" / "search-nano.yaml"
SIDES = ("in process", "served")
TIMES = ("step", "rollout", "score", "update")


@contextmanager
def server(root: Path, threads: int) -> Iterator[tuple[int, str]]:
    """A served nano, its process id and address."""
    command = [sys.executable, "-m", "turnwise", "engine", "serve", "nano", "--port", "0", "--root", str(root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(threads))
    assert process.stdout is not None
    try:
        yield process.pid, process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait(timeout=60)
        process.stdout.close()


def environment(threads: int) -> dict[str, str]:
    """Equal threads on both sides."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads)}


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def train(folder: Path, settings: list[str], threads: int) -> tuple[list[dict[str, Any]], float]:
    """The timings of every step, and the CPU seconds of the trainer."""
    command = [sys.executable, "-m", "turnwise", "train", str(RECIPE), "eval.episodes=0", *settings]
    process = subprocess.Popen([*command, "--quiet", "--output", str(folder)], env=environment(threads))
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the run in {folder} failed")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return rows, usage.ru_utime + usage.ru_stime


def tokens(folder: Path, steps: int) -> list[Any]:
    """All sampled ids of a run."""
    groups = [
        group for step in range(1, steps + 1) for group in read_groups(folder / f"rollouts/step_{step:06d}.jsonl.zst")
    ]
    return [list(turn.sampled_ids) for group in groups for one in group.trajectories for turn in one.turns]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    times: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    work: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as scratch:
        root, sampled = Path(scratch), list[Any]()
        with server(root, asked.threads) as (pid, url):
            for number in range(asked.rounds):
                for side in SIDES:
                    folder, before = root / f"{side.replace(' ', '-')}-{number}", cpu_seconds(pid)
                    settings = [f"train.steps={asked.steps}"]
                    settings += [f"engine={{kind: turnwise, urls: ['{url}']}}"] if side == "served" else []
                    rows, spent = train(folder, settings, asked.threads)
                    times[side] += [{name: row[f"time/{name}"] for name in TIMES} for row in rows[1:]]
                    work[side].append((spent + cpu_seconds(pid) - before) / asked.steps)
                    sampled.append(tokens(folder, asked.steps))
    same = all(each == sampled[0] for each in sampled)
    show(times, work, same)


def show(times: dict[str, list[dict[str, float]]], work: dict[str, list[float]], same: bool) -> None:
    """One line for each side, and the overhead."""
    table = Table("", "step", *TIMES[1:], "publish", "CPU s/step", box=None)
    medians: dict[str, float] = {}
    for side, rows in times.items():
        found = {name: median(row[name] for row in rows) for name in TIMES}
        rest = median(row["step"] - row["rollout"] - row["score"] - row["update"] for row in rows)
        medians[side] = found["step"]
        table.add_row(side, *(f"{value:.2f}" for value in (*found.values(), rest, median(work[side]))))
    Console().print(table)
    wall = medians["served"] / medians["in process"] - 1
    cpu = median(work["served"]) / median(work["in process"]) - 1
    print(f"overhead: {wall:+.1%} wall, {cpu:+.1%} CPU (the start of the trainer included)")
    print("both sides sampled the same tokens" if same else "THE SIDES SAMPLED DIFFERENT TOKENS")


if __name__ == "__main__":
    main()
