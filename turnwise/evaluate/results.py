"""The results of one finished run, read from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from turnwise.evaluate.statistics import area_under_curve, tail_ratio
from turnwise.guard.collapse import Collapse, find_collapse
from turnwise.runs.reading import read_whole_run

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One run in numbers. Success is on held-out tasks; numbers without data are None."""

    folder: str
    seed: int
    steps: int
    episodes: int
    """Episodes that it learned from: its data budget."""
    start: float
    best: float
    final: float
    final_turns: float | None
    """Turns per episode at the last evaluation."""
    final_reward: float | None
    area: float
    """Mean success over the planned training; a stopped run keeps its last value."""
    collapse: Collapse | None
    clip_fraction: float | None
    gradient_tail: float | None
    """99th percentile of the steps' largest gradient norms over the median norm."""
    explained_variance: float | None
    """Of the critic, mean over the second half of training."""
    scale: float | None
    """Mean share of the step that was taken."""
    seconds: float
    """Of its steps and evaluations."""


def read_result(path: str | Path) -> RunResult:
    """Read a run; ValueError if it was never evaluated."""
    run = read_whole_run(path)
    metrics, evaluations = run.metrics, over_policies(run.evals)
    curve = _curve(evaluations, run.config["train"]["steps"])
    if not curve:
        raise ValueError(f"{run.path} has no evaluation to compare; set eval.episodes and train again")
    successes = list(curve.values())
    last = next(row for row in reversed(evaluations) if row.get("eval/success") is not None)
    return RunResult(
        folder=str(run.path),
        seed=run.config["seed"],
        steps=max((row["step"] for row in metrics), default=0),
        episodes=int(sum(_values(metrics, "rollout/episodes"))),
        start=successes[0],
        best=max(successes),
        final=successes[-1],
        final_turns=last.get("eval/turns"),
        final_reward=last.get("eval/reward"),
        area=area_under_curve(list(curve), successes),
        collapse=find_collapse(evaluations, run.events),
        clip_fraction=_mean(_values(metrics, "loss/clip_fraction")),
        gradient_tail=_gradient_tail(metrics),
        explained_variance=_mean(_values(metrics[len(metrics) // 2 :], "train/explained_variance")),
        scale=_mean(_values(metrics, "train/scale")),
        seconds=sum(_values(metrics, "time/step")) + sum(_values(evaluations, "time/evaluate")),
    )


def over_policies(evaluations: Rows) -> Rows:
    """Evaluations with plain numbers: the means over policies where each has only its own, under its name."""
    return [{**_means(row), **row} for row in evaluations]


def _means(row: dict[str, Any]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for name, value in row.items():
        place = name.find("/eval/")
        if place > 0 and isinstance(value, int | float):
            found.setdefault(name[place + 1 :], []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def _curve(evaluations: Rows, steps: int) -> dict[int, float]:
    """Success by step, extended to the last planned step so that stopping early does not look better."""
    curve = {row["step"]: row["eval/success"] for row in evaluations if row.get("eval/success") is not None}
    if curve and max(curve) < steps:
        curve[steps] = curve[max(curve)]
    return dict(sorted(curve.items()))


def _values(rows: Rows, name: str) -> list[float]:
    """The numbers of a metric; skips steps that have null or nothing."""
    return [row[name] for row in rows if row.get(name) is not None]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _gradient_tail(metrics: Rows) -> float | None:
    peaks, typical = _values(metrics, "train/gradient_norm_max"), _values(metrics, "train/gradient_norm")
    ratio = tail_ratio(peaks, typical) if peaks and typical else float("nan")
    return ratio if isfinite(ratio) else None
