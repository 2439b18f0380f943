"""When did a finished run start to go wrong, and which signal moved first (`definition.ONSET`)?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from turnwise.guard.bounds import Crossing, find_crossings
from turnwise.guard.definition import HEALTHY, LASTING, LEAST_BEST, RECENT, SURE, WINDOW, is_lost, without_own_losses
from turnwise.runs.rows import is_number

SHORTEST_WINDOW = 8
"""Steps that a band takes at least."""

Direction = Literal["up", "down", "both"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Signal:
    """How to watch one metric: which direction is bad, whether to use its logarithm, which spread is at least noise."""

    bad: Direction
    log: bool = False
    floor: float = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Onset:
    """Where a run starts to go wrong: `Onset(step=61, signal="loss/ratio_max", source="change", text="…")`."""

    step: int
    signal: str
    source: Literal["guard", "change"]
    text: str


def find_onset(metrics: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> Onset | None:
    """The moment by `definition.ONSET`; None for a run that held."""
    return _first_incident(events) or _first_change(without_own_losses(metrics))


def _first_incident(events: Sequence[Mapping[str, Any]]) -> Onset | None:
    incidents = [event for event in events if event.get("kind") == "guard"]
    if not incidents:
        return None
    first = min(incidents, key=lambda event: event["step"])
    signal = str(first.get("signal", "guard"))
    return Onset(step=first["step"], signal=signal, source="guard", text=str(first.get("text") or signal))


def _first_change(metrics: Sequence[Mapping[str, Any]]) -> Onset | None:
    fall = _find_fall(metrics) or _find_loss(metrics)
    if fall is None:
        return None
    start, end = fall
    moved = [(row, -size, name) for name in SIGNALS for row, size in _departures(metrics, name, start, end)]
    crossed = _first_crossing(metrics, start, end)
    if crossed is not None and all(crossed[0] <= row for row, _, _ in moved):
        _, crossing = crossed
        return Onset(step=crossing.step, signal=crossing.metric, source="change", text=crossing.text)
    if not moved:
        step = metrics[end]["step"]
        text = f"success fell below half of its best at step {step}; no other signal moved before"
        return Onset(step=step, signal="rollout/success", source="change", text=text)
    row, _, name = min(moved)
    return Onset(step=metrics[row]["step"], signal=name, source="change", text=_describe(metrics, row, name))


def _find_fall(metrics: Sequence[Mapping[str, Any]]) -> tuple[int, int] | None:
    """Rows to search for the cause: a window before success was last healthy, and where it had fallen."""
    known = [
        (row, float(item["rollout/success"]))
        for row, item in enumerate(metrics)
        if is_number(item.get("rollout/success"))
    ]
    smooth = [
        median(value for _, value in known[max(0, place - RECENT + 1) : place + 1]) for place in range(len(known))
    ]
    best = max(smooth, default=0.0)
    if best < LEAST_BEST or not is_lost(smooth[-1], best):
        return None
    healthy = max(place for place, value in enumerate(smooth) if value >= HEALTHY * best)
    fallen = max(place for place, value in enumerate(smooth) if not is_lost(value, best)) + 1
    return max(0, known[healthy][0] - WINDOW), known[fallen][0]


def _find_loss(metrics: Sequence[Mapping[str, Any]]) -> tuple[int, int] | None:
    """All rows, if the last one lost its success at once: too short a fall for a median to show."""
    lost = metrics and any(each.metric == "rollout/success" for each in find_crossings(metrics[:-1], metrics[-1]))
    return (0, len(metrics) - 1) if lost else None


def _first_crossing(metrics: Sequence[Mapping[str, Any]], start: int, end: int) -> tuple[int, Crossing] | None:
    for row in range(start, end + 1):
        for crossing in find_crossings(metrics[:row], metrics[row]):
            if crossing.bound.severe:
                return row, crossing
    return None


def _departures(metrics: Sequence[Mapping[str, Any]], name: str, start: int, end: int) -> list[tuple[int, float]]:
    """The first row (and how far out it is) at which a signal leaves its band and stays out; an empty list if none."""
    signal = SIGNALS[name]
    values = [_transformed(row, name, signal) for row in metrics]
    for row in range(start, end + 1):
        stay = values[row : row + LASTING]
        before = [value for value in values[max(0, row - WINDOW) : row] if value is not None and math.isfinite(value)]
        if len(before) < SHORTEST_WINDOW or len(stay) < LASTING or None in stay:
            continue
        outside = [_distance(value, before, signal) for value in stay if value is not None]
        if min(outside) > SURE:
            return [(row, outside[0])]
    return []


def _transformed(row: Mapping[str, Any], name: str, signal: Signal) -> float | None:
    """The watched number; infinite if the recorded value was not finite; None if nothing was measured."""
    if name not in row:
        return None
    value = row[name]
    if not is_number(value):
        return math.inf
    return math.log(max(float(value), 1e-12)) if signal.log else float(value)


def _distance(value: float, before: list[float], signal: Signal) -> float:
    """Robust standard deviations beyond the median, counted in the bad direction."""
    if math.isinf(value):
        return math.inf
    middle = median(before)
    spread = max(1.4826 * median(abs(item - middle) for item in before), signal.floor)
    deviation = (value - middle) / spread
    return {"up": deviation, "down": -deviation, "both": abs(deviation)}[signal.bad]


def _describe(metrics: Sequence[Mapping[str, Any]], row: int, name: str) -> str:
    before = [item[name] for item in metrics[max(0, row - WINDOW) : row] if is_number(item.get(name))]
    value = metrics[row][name]
    now = f"{value:.3g}" if is_number(value) else "a number that is not finite"
    return f"{name} left its band: {now} after a median of {median(before):.3g} over the {len(before)} steps before"


SIGNALS = {
    "loss/ratio_max": Signal(bad="up", log=True, floor=0.05),
    "loss/ratio_ess": Signal(bad="down"),
    "loss/clip_fraction": Signal(bad="up", floor=0.005),
    "loss/sampler_kl": Signal(bad="up", log=True, floor=0.1),
    "loss/reference_kl": Signal(bad="up", log=True, floor=0.1),
    "loss/entropy": Signal(bad="both"),
    "loss/value_error": Signal(bad="up", log=True, floor=0.05),
    "train/gradient_norm": Signal(bad="up", log=True, floor=0.05),
    "train/gradient_norm_max": Signal(bad="up", log=True, floor=0.05),
    "train/clip_bias": Signal(bad="up", log=True, floor=0.05),
    "train/explained_variance": Signal(bad="down", floor=0.02),
    "rollout/valid": Signal(bad="down"),
    "rollout/cut": Signal(bad="up"),
    "rollout/repetition": Signal(bad="up"),
    "rollout/tokens": Signal(bad="both", log=True, floor=0.05),
}
"""The signals that are watched, and how; spreads below `floor` count as noise."""
