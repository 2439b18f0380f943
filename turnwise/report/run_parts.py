"""The parts of a run that reports and live pages show, as plain data."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from turnwise.guard.onset import find_onset
from turnwise.report.columns import rounded
from turnwise.report.differences import flatten
from turnwise.report.panels import IMITATION_PANELS, PANELS, curves, held_out_measures
from turnwise.report.summary import final_success, summarize_run
from turnwise.runs.reading import Row, RunData
from turnwise.runs.rows import is_number
from turnwise.words import counted

MOST_EVENTS = 300
MOST_EVALUATIONS = 256
"""Of more evaluations every second, fourth, … is shown, and the last."""
LEAGUE = "league"
"""The kind of event that has a table of ratings."""
_EVALUATED = tuple(panel.evaluation for panel in PANELS if panel.evaluation)
_OF_PLAY = ("rollout/", "loss/clip", "loss/ratio", "loss/sampler")
"""What describes episodes and their sampler."""


def plays(run: RunData) -> bool:
    """Whether a run plays episodes; one on files alone does not."""
    sft, stage = run.config.get("sft"), run.config.get("stage")
    return stage != "preference" and not (stage == "imitation" and isinstance(sft, dict) and bool(sft.get("chats")))


def without_play(row: Row) -> Row:
    """A row of a run on files alone, without what it says of episodes and samplers: that means nothing."""
    return {name: value for name, value in row.items() if not name.startswith(_OF_PLAY)}


def facts(run: RunData) -> dict[str, Any]:
    """What a run is called, and where it was started."""
    return {"name": run.name, "algorithm": run.algorithm, "meta": flatten(run.meta) if run.meta else {}}


def standing(run: RunData) -> dict[str, Any]:
    """Where a run stands: its numbers and verdict, and where it started to go wrong."""
    onset = find_onset(run.metrics, run.events)
    return {"summary": summarize_run(run, onset), "onset": asdict(onset) if onset else None}


def imitation(stage: RunData) -> dict[str, Any]:
    """The curves of an imitation stage, and held-out success before and after it."""
    return {
        "curves": curves(stage.metrics, [panel.metric for panel in IMITATION_PANELS]),
        "steps": stage.metrics[-1]["step"] if stage.metrics else 0,
        "final": final_success(stage),
    }


def evaluated(run: RunData) -> dict[str, Any]:
    """What was measured on held-out tasks, and which of it is no outcome."""
    return {"evaluations": _evaluations(run), "measures": held_out_measures(run.evals)}


def happenings(run: RunData, *, newest: bool = False) -> dict[str, Any]:
    """Commands and events, of very many the first or the newest; and the table of the league."""
    events = [event for event in run.events if event.get("kind") != LEAGUE]
    shown = events[-MOST_EVENTS:] if newest else events[:MOST_EVENTS]
    return {
        "events": [*map(_command, run.history), *map(_event, shown)],
        "events_left_out": len(events) - len(shown),
        "league": _league(run),
    }


def _thinned(rows: Sequence[Row]) -> list[Row]:
    every = 1
    while len(rows) > MOST_EVALUATIONS * every:
        every *= 2
    return [*rows[:-1:every], *rows[-1:]]


def _league(run: RunData) -> list[Row]:
    """The newest table of ratings, without rows that a damaged journal may have."""
    tables = [event.get("table") for event in run.events if event.get("kind") == LEAGUE]
    rows: list[Any] = tables[-1] if tables and isinstance(tables[-1], list) else []
    numbers = ("rating", "low", "high", "games", "score")
    return [
        {"player": str(row.get("player")), **{name: rounded(row[name]) for name in numbers}}
        for row in rows
        if isinstance(row, dict) and all(is_number(row.get(name)) for name in numbers)
    ]


def _evaluations(run: RunData) -> list[Row]:
    measured = (*_EVALUATED, *held_out_measures(run.evals))
    names = [f"{name}{ending}" for name in measured for ending in ("", "_low", "_high")]
    return [
        {"step": row["step"], **{name: rounded(row[name]) for name in names if name in row}}
        for row in _thinned(run.evals)
    ]


def _command(row: Row) -> dict[str, Any]:
    """A command that started or resumed the run, as an event."""
    command, changes, undone = (_list(row, name) for name in ("command", "changes", "undone"))
    text = "; ".join([shlex.join(command), *changes, *([f"{counted(len(undone), 'event')} undone"] if undone else [])])
    return _event({key: row[key] for key in ("step", "time", "kind") if key in row} | {"text": text})


def _list(row: Row, name: str) -> list[str]:
    value = row.get(name)
    return [str(item) for item in value] if isinstance(value, list) else []


def _event(event: Row) -> dict[str, Any]:
    """An event with the common fields, and the rest as dotted keys."""
    common = ("time", "kind", "signal", "action", "text", "change")
    # A stack trace is for fixing the environment: events.jsonl has it.
    rest = {key: value for key, value in event.items() if key not in (*common, "step", "traceback")}
    shown = {key: str(event[key]) for key in common if event.get(key) is not None}
    return {"step": event["step"], **shown, "rest": flatten(rest) if rest else {}}
