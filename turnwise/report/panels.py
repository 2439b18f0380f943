"""What the report plots: the panels of curves and heat maps, and the numbers of one run in columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from turnwise.report.columns import MOST_POINTS, Columns
from turnwise.runs.reading import Row
from turnwise.runs.rows import is_number

_PART = "rollout/reward_"
MOST_TURNS = 1000
"""Turns that a heat map shows."""
_COUNTED = {"eval/episodes", "eval/tasks", "eval/faults"}
Scale = Literal["linear", "log"]
Cell = tuple[str, int]
"""A metric and a turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One plot: the metric, its chapter, and what it tells a reader."""

    metric: str
    chapter: str
    title: str
    note: str
    scale: Scale = "linear"
    evaluation: str = ""
    """Metric of `evals.jsonl` drawn over the curve, with its interval."""
    share: bool = False
    """Between 0 and 1: the axis ends there."""
    unit: str = ""
    """What the vertical axis shows, in a word or two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Heat:
    """One heat map over turn index and step."""

    metric: str
    title: str
    note: str
    scale: Scale = "linear"
    centre: float | None = None
    """The value that means nothing happened; the colours diverge from it."""


def curves(rows: Iterable[Row], metrics: Sequence[str]) -> dict[str, Any]:
    """Steps and one column per metric that was ever measured; non-numbers become None."""
    columns = Columns[str]()
    for row in rows:
        columns.add(row["step"], row.items())
    return curves_of(columns, metrics)


def curves_of(columns: Columns[str], metrics: Iterable[str], *, since: int = 0) -> dict[str, Any]:
    """The same of columns, from the bucket `since` on."""
    known = set(columns.keys)
    return {
        "step": columns.steps[since:],
        "columns": {name: columns.column(name, since) for name in dict.fromkeys(metrics) if name in known},
    }


def metric_names(rows: Iterable[Row]) -> set[str]:
    """Every name that any row has."""
    return {name for row in rows for name in row}


def is_part(name: str) -> bool:
    """Whether a metric is a named part of the reward."""
    return name.startswith(_PART)


def has_own_panel(name: str) -> bool:
    """Whether a metric has a place of its own; the others are shown together."""
    return name in _PLACED or is_part(name)


def part_panels(names: Iterable[str]) -> list[Panel]:
    """A panel for every named part of the reward, in alphabetical order."""
    return [
        Panel(
            metric=name,
            chapter="Parts of the reward",
            title=name.removeprefix(_PART),
            note="What this part adds to the reward of an episode, on average",
            evaluation=name.replace("rollout/", "eval/", 1),
            unit="reward per episode",
        )
        for name in sorted(filter(is_part, names))
    ]


def held_out_measures(rows: Sequence[Row]) -> list[str]:
    """Every held-out measure that is no outcome, count or end of an interval, in alphabetical order."""
    known = {panel.evaluation for panel in PANELS} | _COUNTED
    names = {name for row in rows for name in row if name.startswith("eval/") and not name.startswith("eval/pass@")}
    ends = {f"{name}{end}" for name in names for end in ("_low", "_high")}
    return sorted(names - known - ends)


def heat_columns(*, most: int = MOST_POINTS) -> Columns[Cell]:
    """Columns for the heat maps; a bucket of steps must not hide a peak: of largest values it shows the largest."""
    return Columns(most=most, largest=lambda cell: cell[0].endswith("_max"))


def add_reading(columns: Columns[Cell], row: Row) -> bool:
    """Add a row of turns.jsonl; False if it comes too late."""
    turn = row.get("turn")
    place = int(turn) if is_number(turn) and 0 <= turn < MOST_TURNS else None
    cells = [] if place is None else [((heat.metric, place), row.get(heat.metric)) for heat in HEATS]
    return columns.add(row["step"], cells)


def heat_maps(rows: Iterable[Row]) -> dict[str, Any]:
    """Matrices (turn index × step) of every heat map that has data."""
    columns = heat_columns()
    for row in sorted(rows, key=lambda row: row["step"]):
        add_reading(columns, row)
    return heat_of(columns)


def heat_of(columns: Columns[Cell], *, since: int = 0) -> dict[str, Any]:
    """The same of columns, from the bucket `since` on."""
    turns = 1 + max((turn for _, turn in columns.keys), default=-1)
    measured = {metric for metric, _ in columns.keys}
    return {
        "step": columns.steps[since:],
        "turns": turns,
        "maps": {
            heat.metric: [columns.column((heat.metric, turn), since) for turn in range(turns)]
            for heat in HEATS
            if heat.metric in measured
        },
    }


def describe_panels(names: Iterable[str]) -> list[dict[str, Any]]:
    """The panels as data for the page; `names` of metrics say which parts the rewards have."""
    played = sum(panel.chapter == PANELS[0].chapter for panel in PANELS)
    return [asdict(panel) for panel in (*PANELS[:played], *part_panels(names), *PANELS[played:])]


def describe() -> dict[str, Any]:
    """What every page shows beside the panels, as data for it."""
    return {
        "imitation_panels": [asdict(panel) for panel in IMITATION_PANELS],
        "heats": [asdict(heat) for heat in HEATS],
        "times": TIMES,
    }


PANELS = (
    Panel(
        metric="rollout/success",
        chapter="Outcome",
        title="Success",
        note="Share of training episodes that succeeded; diamonds: evaluations on held-out tasks",
        evaluation="eval/success",
        share=True,
        unit="share of episodes",
    ),
    Panel(
        metric="rollout/reward",
        chapter="Outcome",
        title="Reward",
        note="Mean sum of rewards per episode",
        evaluation="eval/reward",
        unit="reward per episode",
    ),
    Panel(
        metric="rollout/turns",
        chapter="Outcome",
        title="Turns",
        note="Mean number of turns per episode",
        evaluation="eval/turns",
        unit="turns per episode",
    ),
    Panel(
        metric="rollout/valid",
        chapter="Outcome",
        title="Valid turns",
        note="Share of turns that were not cut and that the environment accepted as valid",
        evaluation="eval/valid",
        share=True,
        unit="share of turns",
    ),
    Panel(
        metric="rollout/tokens",
        chapter="Outcome",
        title="Tokens",
        note="Sampled tokens per episode",
        evaluation="eval/tokens",
        unit="tokens per episode",
    ),
    Panel(
        metric="rollout/repetition",
        chapter="Outcome",
        title="Repetition",
        note="Share of sampled 4-grams that repeat an earlier one of their turn",
        unit="share of 4-grams",
    ),
    Panel(
        metric="loss/clip_fraction",
        chapter="Policy update",
        title="Clip fraction",
        note="Share of tokens whose gradient the clip removed or changed",
        unit="share of tokens",
    ),
    Panel(
        metric="loss/ratio_max",
        chapter="Policy update",
        title="Largest ratio",
        note="Largest importance ratio of the step",
        scale="log",
        unit="ratio",
    ),
    Panel(
        metric="loss/sampler_kl",
        chapter="Policy update",
        title="KL to the sampler",
        note="How far the policy has moved from the one that sampled",
        scale="log",
        unit="nats",
    ),
    Panel(
        metric="loss/reference_kl",
        chapter="Policy update",
        title="KL to the reference",
        note="How far the policy has moved from the reference",
        scale="log",
        unit="nats",
    ),
    Panel(
        metric="loss/entropy",
        chapter="Policy update",
        title="Entropy",
        note="Entropy of the next-token distribution, in nats",
        unit="nats",
    ),
    Panel(
        metric="train/gradient_norm",
        chapter="Policy update",
        title="Gradient norm",
        note="Mean over the step's updates, before clipping",
        scale="log",
        unit="norm",
    ),
    Panel(
        metric="pairs/accuracy",
        chapter="Comparisons",
        title="Accuracy",
        note="Share of pairs whose better answer became likelier than the worse one",
        evaluation="eval/pairs_accuracy",
        share=True,
        unit="share of pairs",
    ),
    Panel(
        metric="pairs/margin",
        chapter="Comparisons",
        title="Margin",
        note="How much further the better answer moved than the worse one",
        evaluation="eval/pairs_margin",
        unit="nats",
    ),
    Panel(
        metric="pairs/rejected",
        chapter="Comparisons",
        title="Worse answers",
        note="How far the worse answers of pairs moved; far below 0 they are being unlearnt",
        evaluation="eval/pairs_rejected",
        unit="nats",
    ),
    Panel(
        metric="loss/value_error",
        chapter="Critic and scale",
        title="Value error",
        note="Root mean squared error of the critic against its target",
        unit="reward",
    ),
    Panel(
        metric="train/explained_variance",
        chapter="Critic and scale",
        title="Explained variance",
        note="How much of the returns the critic explains; 0 is no better than their mean",
        unit="share of variance",
    ),
    Panel(
        metric="train/clip_bias",
        chapter="Critic and scale",
        title="‖C‖",
        note="Norm of the clipping bias that set the scale, mean over updates",
        scale="log",
        unit="norm",
    ),
    Panel(
        metric="train/scale",
        chapter="Critic and scale",
        title="Scale",
        note="Mean factor on the optimiser step; 1 is the full step",
        unit="factor",
    ),
)
"""The curves, chapter by chapter."""

IMITATION_PANELS = (
    Panel(
        metric="loss/policy",
        chapter="Imitation",
        title="Imitation loss",
        note="Mean negative log-probability of a demonstrated token",
        unit="nats",
    ),
    Panel(
        metric="loss/entropy",
        chapter="Imitation",
        title="Entropy",
        note="Entropy of the next-token distribution, in nats",
        unit="nats",
    ),
    Panel(
        metric="train/gradient_norm",
        chapter="Imitation",
        title="Gradient norm",
        note="Mean over the step's updates, before clipping",
        scale="log",
        unit="norm",
    ),
)
"""The curves of the imitation stage."""

TIMES = {
    "time/rollout": "playing",
    "time/score": "scoring",
    "time/update": "learning",
    "time/step": "the whole step",
    "time/env": "of playing, environments",
    "time/tokens_per_second": "tokens per second",
}
"""Where time goes, in the words of the page."""
_PLACED = {*(panel.metric for panel in PANELS), *TIMES}

HEATS = (
    Heat(metric="turn/ratio_mean", title="Mean ratio", note="1: the policy has not moved", scale="log", centre=1.0),
    Heat(metric="turn/ratio_max", title="Largest ratio", note="the tail that clipping handles", scale="log"),
    Heat(metric="turn/clip_fraction", title="Clip fraction", note="share of tokens clipped"),
    Heat(metric="turn/sampler_kl", title="KL to the sampler", note="movement since sampling", scale="log"),
    Heat(metric="turn/entropy", title="Entropy", note="nats per token"),
    Heat(metric="turn/advantage_std", title="Advantage spread", note="standard deviation"),
    Heat(metric="turn/value_error", title="Value error", note="root mean square"),
    Heat(metric="turn/clip_bias", title="‖C‖", note="this turn's share of the clipping bias", scale="log"),
)
"""The microscope, map by map."""
