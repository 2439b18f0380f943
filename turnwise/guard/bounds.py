"""Absolute bounds on metrics that no sound run crosses, for runs that break before they have a history to compare with.

`BOUNDS` is the one place for these numbers, each with its reason. The guard reports a metric that crosses its bound,
the report looks there for the onset of a collapse, and a recipe may set others: `guard.bounds: {loss/sampler_kl: 5}`.
There is none on the clip fraction: rows with narrow clips learn well while they clip 0.9 of their tokens.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from turnwise.guard.definition import CHANCE, INVALID, RECENT
from turnwise.runs.rows import Row, number


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A number that a metric must not cross, the guard's signal for it, and the reason for the number."""

    signal: str
    label: str
    limit: float
    why: str
    below: bool = False
    """Whether it is crossed downwards (reaching the limit is enough) rather than upwards."""
    sound: float | None = None
    """All recent steps must have been on the right side of this: what a run starts with is not a collapse. None: the
    number is wrong whatever came before."""
    share: bool = False
    """A share of the tasks: it counts as gone only if it is too small for chance."""
    unless_success_holds: bool = False
    """Learning makes the same move: it counts only if success falls with it, or is zero."""
    severe: bool = True
    """Whether the state is lost (an acting guard restores), or the step was too long (it shrinks the rate)."""


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """A metric beyond its bound: `Crossing(metric="loss/sampler_kl", step=1, now=13.5, before=None, bound=…)`."""

    metric: str
    step: int
    now: float
    before: float | None
    bound: Bound

    @property
    def text(self) -> str:
        """The crossing as a sentence."""
        if self.before is not None:
            return f"{self.bound.label} {self.now:.3g} at step {self.step}, {self.before:.3g} before"
        return f"{self.bound.label} {self.now:.3g} at step {self.step}, above the bound of {self.bound.limit:g}"


def find_crossings(rows: Sequence[Row], row: Row, bounds: Mapping[str, Bound] | None = None) -> list[Crossing]:
    """The bounds that the step crosses, given the steps before it."""
    known = BOUNDS if bounds is None else bounds
    found = [_crossing(rows, row, metric, bound) for metric, bound in known.items()]
    return [crossing for crossing in found if crossing is not None]


def _crossing(rows: Sequence[Row], row: Row, metric: str, bound: Bound) -> Crossing | None:
    now = number(row, metric)
    if now is None or not _beyond(now, bound):
        return None
    before = None
    if bound.sound is not None:
        before = _level_before(rows, metric, bound)
        if before is None or (bound.share and _is_chance(rows, row, metric, bound, before)):
            return None
        if bound.unless_success_holds and _success_holds(rows, row):
            return None
    return Crossing(metric=metric, step=int(row["step"]), now=now, before=before, bound=bound)


def _beyond(value: float, bound: Bound) -> bool:
    return value <= bound.limit if bound.below else value > bound.limit


def _level_before(rows: Sequence[Row], metric: str, bound: Bound) -> float | None:
    """The recent step within the bound that is closest to it; None if that was not a sound level either."""
    assert bound.sound is not None
    values = [value for each in rows if (value := number(each, metric)) is not None and not _beyond(value, bound)]
    if not values:
        return None
    closest = min(values[-RECENT:]) if bound.below else max(values[-RECENT:])
    return closest if (closest > bound.sound) == bound.below else None


def _is_chance(rows: Sequence[Row], row: Row, metric: str, bound: Bound, before: float) -> bool:
    """Whether so few could be chance. Steps in a row add up: eight tasks that all fail twice are sixteen."""
    tasks = _tasks(row)
    for each in reversed(rows):
        value = number(each, metric)
        if value is None or not _beyond(value, bound):
            break
        tasks += _tasks(each)
    return (1 - before) ** tasks >= CHANCE


def _success_holds(rows: Sequence[Row], row: Row) -> bool:
    now, before = (number(each, "rollout/success") for each in (row, rows[-1]))
    return now is not None and before is not None and now >= before and now > 0


def _tasks(row: Row) -> float:
    """Tries at one task may all end alike, so count tasks."""
    return number(row, "rollout/tasks") or number(row, "rollout/episodes") or 1.0


BOUNDS: dict[str, Bound] = {
    "loss/sampler_kl": Bound(
        signal="kl",
        label="KL from the sampler",
        limit=1.5,
        why="the updates of one step made sampled tokens four times less likely on average; runs that learn stay "
        "under 0.6, and with sixteen updates per step the largest of those that hold is 0.23 in the median",
    ),
    "loss/reference_kl": Bound(
        signal="kl",
        label="KL to the reference",
        limit=1000.0,
        why="the estimate is a mean of p(reference) / p(policy), which is at most 1 in expectation on tokens that the "
        "policy samples: a thousand means that the policy has abandoned what it sampled",
    ),
    "train/gradient_norm": Bound(
        signal="gradient-spike",
        label="gradient norm",
        limit=1e4,
        severe=False,
        why="losses are means, so norms are 0.001 to 100; Adam remembers one of ten thousand for hundreds of updates",
    ),
    "loss/entropy": Bound(
        signal="entropy-cliff",
        label="entropy",
        limit=0.005,
        below=True,
        sound=0.05,
        unless_success_holds=True,
        why="0.005 nats is one text, sampled again and again; a tenfold drop in one step is not a policy that sharpens",
    ),
    "rollout/success": Bound(
        signal="reward-shift",
        label="success",
        limit=0.0,
        below=True,
        sound=0.1,
        share=True,
        why="a policy that solved a tenth of its tasks and now solves none has lost what it knew",
    ),
    "rollout/valid": Bound(
        signal="validity",
        label="share of valid turns",
        limit=INVALID,
        below=True,
        sound=0.1,
        share=True,
        why="the share below which a run counts as collapsed",
    ),
    "rollout/repetition": Bound(
        signal="repetition",
        label="share of repeated text",
        limit=0.5,
        sound=0.25,
        why="half of a turn repeats what it already said; sound turns stay under 0.1, long ones under 0.25",
    ),
    "rollout/cut": Bound(
        signal="cut-surge",
        label="share of episodes that ran into a limit",
        limit=0.95,
        sound=0.5,
        severe=False,
        why="hardly any episode ends by itself, a step after half of them did",
    ),
}
"""By metric. The first three apply in every step, the others once there is an earlier step to fall from."""


def bounds_with(limits: Mapping[str, float | None]) -> dict[str, Bound]:
    """The bounds with other limits; None removes a bound. ValueError for a metric that has none."""
    for metric in limits:
        if metric not in BOUNDS:
            near = difflib.get_close_matches(metric, BOUNDS, n=1)
            fix = f"did you mean {near[0]}?" if near else f"choose from {', '.join(BOUNDS)}"
            raise ValueError(f"guard.bounds: there is no bound on {metric!r}; {fix}")
    chosen = {metric: limits.get(metric, bound.limit) for metric, bound in BOUNDS.items()}
    return {metric: replace(BOUNDS[metric], limit=limit) for metric, limit in chosen.items() if limit is not None}
