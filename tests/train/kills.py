"""Kills real commands at random moments and resumes them, until the run is done; then compares it with its twin.

    python -m tests.train.kills --kills 200 --seed 1

Most runs are the shipped recipe with the shipped model in a small form: episodes end at different turns, so that the
last of each step decodes alone. In one, two policies learn and exchange their weights. The twin of a run is never
killed. Journals and tensors of both must be equal to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
CASES: dict[str, tuple[str, ...]] = {
    **{
        algorithm: ("recipes/search-nano.yaml", f"algorithm={algorithm}")
        for algorithm in ("st-ppo", "minirl", "turn-ppo-drift", "grpo")
    },
    "cory": (
        *("recipes/cory/cpu.yaml", "algorithm=cory", "sft=null", "policies={pioneer: {}, observer: {}}"),
        "seats={pioneer: pioneer, observer: observer}",
        "exchange={every: 2, policies: [pioneer, observer]}",
    ),
}
"""What is run, by name: settings of `turnwise train`."""
SMALL = (
    *("rollout.episodes=16", "train.steps=4", "checkpoint.every=1", "eval.every=2", "eval.episodes=8"),
    *("env.check=false", "log.rollouts=1"),
)
_PATIENCE = 900.0
"""Seconds that one life of a run may take on the busiest of machines."""


@dataclass(kw_only=True)
class Tally:
    """What a campaign did."""

    kills: int = 0
    runs: int = 0
    lives: list[float] = field(default_factory=list[float])
    """Seconds after the run's first sign of life at which each was killed."""
    differences: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        spread = f"{min(self.lives):.1f} to {max(self.lives):.1f} s after the first file" if self.lives else "none"
        found = "; ".join(self.differences) or "none"
        return f"kills {self.kills}, runs {self.runs} ({spread}); differences from runs left alone: {found}"


def campaign(folder: Path, *, kills: int, seed: int, cases: Sequence[str] = tuple(CASES)) -> Tally:
    """Kill and resume runs, one after the other, until `kills` processes have died."""
    rng, tally = random.Random(seed), Tally()
    while tally.kills < kills:
        case = cases[tally.runs % len(cases)]
        run_seed = f"seed={rng.randrange(1000)}"
        settings = (*CASES[case], run_seed, *SMALL)
        twin, run = folder / f"twin-{tally.runs}", folder / f"run-{tally.runs}"
        # A third of a whole run, because every life begins where a checkpoint of the last one is: more kills a run.
        span = _finish(_start("train", *settings, "--output", str(twin)), twin) / 3
        while tally.kills < kills and (lived := _live(run, settings, delay=rng.uniform(0, span))) is not None:
            tally.kills += 1
            tally.lives.append(lived)
        if not _is_done(run):
            _finish(_begin(run, settings), run)
        tally.runs += 1
        tally.differences += [f"{case} {run_seed}: {name}" for name in differences(run, twin)]
        print(tally, flush=True)  # a campaign takes long: what it has seen so far must not be lost with it
    return tally


def differences(run: Path, twin: Path) -> list[str]:
    """Files of two runs that should be equal and are not; what the clock says apart."""
    journals = ("metrics.jsonl", "turns.jsonl", "evals.jsonl")
    found = [name for name in journals if timeless(run / name) != timeless(twin / name)]
    mine, other = last_tensors(run), last_tensors(twin)
    return found + sorted(name for name in mine.keys() | other.keys() if mine.get(name) != other.get(name))


def timeless(journal: Path) -> list[dict[str, Any]]:
    """A journal's rows without what the clock says."""
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    return [{name: value for name, value in row.items() if not name.startswith("time")} for row in rows]


def last_tensors(folder: Path) -> dict[str, bytes]:
    """Every byte of the last checkpoint's tensors."""
    last = max((folder / "checkpoints").glob("step_*"))
    return {str(file.relative_to(last)): file.read_bytes() for file in sorted(last.rglob("*.safetensors"))}


def _live(run: Path, settings: Sequence[str], *, delay: float) -> float | None:
    """Start or resume the run and kill it `delay` seconds after it touched its folder; None when it was done before."""
    before = _latest_change(run)
    process = _begin(run, settings)
    began = _wait(process, lambda: _latest_change(run) != before)
    try:
        code = process.wait(timeout=delay)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return time.monotonic() - began
    if code != 0:
        raise AssertionError(f"{run} ended with {code}: {process.communicate()[1]}")
    return None


def _begin(run: Path, settings: Sequence[str]) -> subprocess.Popen[str]:
    if (run / "meta.json").is_file():
        return _start("resume", str(run))
    return _start("train", *settings, "--output", str(run))


def _start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "turnwise", *arguments, "--quiet"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(process: subprocess.Popen[str], run: Path) -> float:
    """Wait for a run to end well; returns the seconds from its first file to its end."""
    began = _wait(process, lambda: run.is_dir())
    _, errors = process.communicate(timeout=_PATIENCE)
    if process.returncode != 0:
        raise AssertionError(f"{run} ended with {process.returncode}: {errors}")
    return time.monotonic() - began


def _wait(process: subprocess.Popen[str], happened: Any) -> float:
    """When something happened, or the process ended."""
    deadline = time.monotonic() + _PATIENCE
    while not happened() and process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"nothing happened in {_PATIENCE:.0f} seconds")
        time.sleep(0.01)
    return time.monotonic()


def _latest_change(run: Path) -> float:
    """When anything in the folder last changed; 0 when there is none."""
    changes: list[float] = [0.0]
    for path in (run, *run.rglob("*")) if run.exists() else ():
        try:
            changes.append(path.stat().st_mtime)
        except FileNotFoundError:  # a draft that was there a moment ago
            continue
    return max(changes)


def _is_done(run: Path) -> bool:
    events = (run / "events.jsonl").read_text().splitlines() if (run / "events.jsonl").is_file() else []
    return bool(events) and json.loads(events[-1])["kind"] == "finished"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="turnwise-kills-") as folder:
        tally = campaign(Path(folder), kills=chosen.kills, seed=chosen.seed)
    sys.exit(bool(tally.differences))


if __name__ == "__main__":
    main()
