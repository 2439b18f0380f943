"""Training speed, measured in one run: `python benchmarks/train.py`; `--trl PYTHON` names an interpreter that has trl.

(a) What a step costs besides model math and environments, on the shipped nano model and `search/geo-2hop`.
(b) Episodes per second against TRL's GRPOTrainer on the same task: same weights, questions, group size, episodes and
    optimiser steps, token limits, precision and threads. Statistics of the episodes are printed, to show that both do
    the same work.
(c) The same when every search takes 0.2 s.

Each side runs in its own process and is measured after a warm-up step; seconds are medians over steps. CPU seconds
are next to wall seconds: on a busy machine they are the steadier measure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from turnwise.envs import Env, make, register
from turnwise.envs.search.protocol import parse

TASK, SLOW_TASK, MODEL = "search/geo-2hop", "benchmark/slow-search", "nano"
SLOW_SECONDS = 0.2
SEARCHES = 3
"""What the task allows; the turn after the last one must answer."""
OVERLAPPED = "Turnwise, max_lag=1"
HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Case:
    """The settings of both sides."""

    tool_seconds: float = 0.0
    """How long a search takes."""
    steps: int = 4
    """Measured steps; one more comes before them."""
    episodes: int = 128
    group: int = 8
    max_tokens: int = 48
    """Of one turn."""
    learning_rate: float = 1e-4
    threads: int = 1
    seed: int = 0
    max_lag: int = 0
    """Of Turnwise: 1 plays the next step's episodes while it learns from this one's."""

    def make_env(self) -> Env:
        """The environment, with a slow tool if there is one."""
        return SlowSearch(seconds=self.tool_seconds) if self.tool_seconds else make(TASK)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a side did: seconds of each step, and what its episodes were like on average."""

    wall: list[float]
    cpu: list[float]
    turns: float
    tokens: float
    success: float
    outside: float | None = None
    """Share of wall time neither in model math nor in environments, where known."""

    @property
    def seconds(self) -> float:
        return median(self.wall)


class SlowSearch(Env):
    """The search task with a slow tool."""

    execution = "thread"

    def __init__(self, *, seconds: float, split: str = "train") -> None:
        super().__init__(split=split)
        self.env: Any = make(TASK, split=split)
        self.seconds = seconds

    def reset(self, seed=None, task=None):
        """Ask."""
        return self.env.reset(seed=seed, task=task)

    def step(self, action):
        """Wait if it is a search: an answer calls no tool."""
        parsed = parse(action)
        if parsed is not None and parsed.kind == "search":
            time.sleep(self.seconds)
        return self.env.step(action)


class Clock:
    """Wall and CPU seconds between ticks."""

    def __init__(self) -> None:
        self._ticks: list[tuple[float, float]] = []

    def tick(self) -> None:
        """A step is over."""
        self._ticks.append((time.perf_counter(), time.process_time()))

    def seconds(self, steps: int) -> tuple[list[float], list[float]]:
        """Wall and CPU seconds of this many steps after the first, which warms up."""
        pairs = list(pairwise(self._ticks))[:steps]
        return [b[0] - a[0] for a, b in pairs], [b[1] - a[1] for a, b in pairs]


def measure_turnwise(case: Case, folder: Path) -> Measured:
    """Train with the unchanged trainer, including its run folder."""
    import torch

    from turnwise.console.screen import RunConsole
    from turnwise.recipe.loading import load_recipe
    from turnwise.runs.journal import read_journal
    from turnwise.train.stages import train

    torch.set_num_threads(case.threads)
    clock = Clock()

    class Screen(RunConsole):
        def step(self, row: Mapping[str, Any], *, guard: str = "") -> None:
            super().step(row, guard=guard)
            clock.tick()

    register(SLOW_TASK, SlowSearch)
    recipe = load_recipe(None, turnwise_settings(case))
    train(recipe, folder / "run", console=Screen(form="quiet", out=Console(stderr=True)))
    rows = read_journal(folder / "run" / "metrics.jsonl")[1:]
    inside = [(row["time/model"] + row["time/env"]) / row["time/step"] for row in rows]
    turns, tokens, success = (fmean(row[f"rollout/{name}"] for row in rows) for name in ("turns", "tokens", "success"))
    wall, cpu = clock.seconds(case.steps)
    # Waits for a slow tool overlap with each other, and playing with learning: their sums say nothing about a step.
    outside = None if case.tool_seconds or case.max_lag else 1 - median(inside)
    return Measured(wall=wall, cpu=cpu, turns=turns, tokens=tokens, success=success, outside=outside)


def turnwise_settings(case: Case) -> dict[str, Any]:
    """GRPO without a KL term, which is TRL's default; the size of micro-batches is the best one, as it is for TRL."""
    env = {"id": SLOW_TASK, "kwargs": {"seconds": case.tool_seconds}} if case.tool_seconds else {"id": TASK}
    return {
        "seed": case.seed,
        "device": "cpu",
        "model": MODEL,
        "env": {**env, "check": False},
        "algorithm": {
            "preset": "grpo",
            "regularizers": [],
            "sampling": {"kind": "group", "size": case.group},
            # Episodes that an older policy has played are weighed by how likely the policy now is to play them.
            **({"max_lag": case.max_lag, "ratio": {"kind": "token", "against": "mu"}} if case.max_lag else {}),
        },
        "rollout": {"episodes": case.episodes, "max_turns": SEARCHES + 1, "max_tokens": case.max_tokens},
        # A side that plays ahead has nothing left to play in its last steps: they are not measured.
        "train": {"steps": case.steps + 1 + case.max_lag, "learning_rate": case.learning_rate, "micro_tokens": 4096},
        "eval": {"episodes": 0},
    }


def answer(measured: Measured) -> None:
    """A side's process reports its measurements as one line of JSON, after any other output."""
    print("\n" + json.dumps(asdict(measured)), flush=True)


def start(python: str, script: str, case: Case, *arguments: str) -> Measured:
    """Run one side in a new process."""
    command = [python, str(HERE / script), *arguments, "--case", json.dumps(asdict(case))]
    environment = {**os.environ, "OMP_NUM_THREADS": str(case.threads), "MKL_NUM_THREADS": str(case.threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{script} failed:\n{done.stderr[-4000:]}")
    return Measured(**json.loads(done.stdout.strip().splitlines()[-1]))


def sides(python: str | None, case: Case) -> Iterator[tuple[str, Measured]]:
    """Both sides, one after the other; TRL with each of its APIs."""
    yield "Turnwise", start(sys.executable, "train.py", case)
    yield OVERLAPPED, start(sys.executable, "train.py", replace(case, max_lag=1))
    for form in ("environment_factory", "rollout_func") if python else ():
        yield f"TRL, {form}", start(str(python), "train_trl.py", case, "--form", form)


def describe(case: Case, python: str | None) -> str:
    """The settings and the machine, for the reader."""
    names = ("turnwise", "torch", "transformers")
    versions = [f"{name} {version(name)}" for name in names]
    if python:
        versions.append(f"trl {_version_in(python, 'trl')} (its torch {_version_in(python, 'torch')})")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{', '.join(versions)}; {os.cpu_count()} cores, torch threads: {case.threads}, load at the start: {load}\n"
        f"{MODEL} on {TASK}, fp32, GRPO without KL, {case.episodes} episodes a step in groups of {case.group},\n"
        f"at most {case.max_tokens} tokens a turn and {SEARCHES + 1} turns, one update a step, learning rate "
        f"{case.learning_rate:g}"
    )


def _version_in(python: str, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{python} has no {package}; the comparison needs: pip install trl==1.16.0")
    return done.stdout.strip()


COLUMNS = (
    "search",
    "trainer",
    "s/step",
    "CPU s",
    "episodes/s",
    "turns",
    "tokens",
    "success",
    "other",
    "times",
    "in CPU",
    "max_lag=1",
)
CAPTION = """\
tokens: sampled, per episode as are turns; other: share of a step outside model math and environments;
times: how many times the episodes per second Turnwise has, the same by CPU seconds, and with max_lag=1, which plays
and learns at once on two cores.
Goals: other <= 10%; times >= 3 when a search is instant, >= 10 when it takes 0.2 s."""


def add_rows(table: Table, case: Case, results: Mapping[str, Measured]) -> None:
    """One row for each side."""
    ours, overlapped = results["Turnwise"], results[OVERLAPPED]
    for name, side in results.items():
        ratios = (side.seconds / ours.seconds, median(side.cpu) / median(ours.cpu), side.seconds / overlapped.seconds)
        table.add_row(
            f"{case.tool_seconds:g} s",
            name,
            f"{side.seconds:.2f}",
            f"{median(side.cpu):.2f}",
            f"{case.episodes / side.seconds:.1f}",
            f"{side.turns:.2f}",
            f"{side.tokens:.1f}",
            f"{side.success:.2f}",
            "" if side.outside is None else f"{side.outside:.1%}",
            *(["", "", ""] if side in (ours, overlapped) else [f"{ratio:.1f}x" for ratio in ratios]),
        )
    table.add_section()


def main() -> None:
    """Measure both sides, with and without the slow tool, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", metavar="PYTHON", help="an interpreter with trl==1.16.0 and this package")
    parser.add_argument("--steps", type=int, default=Case.steps, help="measured steps; the first of all is not")
    parser.add_argument("--slow-steps", type=int, default=2, help="measured steps with the slow tool")
    parser.add_argument("--episodes", type=int, default=Case.episodes)
    parser.add_argument("--threads", type=int, default=Case.threads)
    parser.add_argument("--case", help=argparse.SUPPRESS)  # how a side's own process gets its settings
    options = parser.parse_args()
    if options.case:
        with tempfile.TemporaryDirectory() as folder:
            answer(measure_turnwise(Case(**json.loads(options.case)), Path(folder)))
        return
    case = Case(steps=options.steps, episodes=options.episodes, threads=options.threads)
    table = Table(title=describe(case, options.trl), title_justify="left", caption=CAPTION, caption_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "trainer" else "right")
    for each in (case, replace(case, tool_seconds=SLOW_SECONDS, steps=options.slow_steps)):
        add_rows(table, each, dict(sides(options.trl, each)))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
