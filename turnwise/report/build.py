"""Write the report of one or several runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from turnwise import __version__
from turnwise.guard.definition import ONSET
from turnwise.guard.onset import find_onset
from turnwise.report.comparison_chapter import comparison_chapter
from turnwise.report.differences import differing, flatten, group_labels, short_labels
from turnwise.report.episodes import Sample, sample_episodes
from turnwise.report.page import render_page
from turnwise.report.panels import (
    IMITATION_PANELS,
    PANELS,
    all_metrics,
    curves,
    describe,
    heat_maps,
    held_out_measures,
    part_panels,
    rounded,
)
from turnwise.report.summary import final_success, summarize_run
from turnwise.runs.reading import Row, RunData, read_run
from turnwise.runs.rows import is_number
from turnwise.words import counted

MOST_EVENTS = 300
MOST_RUNS_IN_FULL = 8
"""With more runs than this, every run has its curves and microscope, but only the named panels."""
MOST_INCIDENTS_WITH_EPISODES = 3
"""Incidents whose steps are in the sample of episodes."""
LEAGUE = "league"
"""The kind of event that has a table of ratings."""
SFT = "sft"
"""The folder of the imitation stage inside a run's own."""
_EVALUATED = tuple(panel.evaluation for panel in PANELS if panel.evaluation)


def write_report(
    runs: Sequence[Path], output: Path, *, comparison: dict[str, Any] | None = None, sample: Sample | None = None
) -> Path:
    """Write one HTML file about the run folders: `write_report([Path("runs/a")], Path("report.html"))`.

    `comparison` is the content of `comparison.json` and adds a chapter; see `comparison_chapter` for its keys.
    """
    if not runs:
        raise ValueError("no run was given; use `turnwise report runs/my-run`")
    page = render_page(collect(runs, comparison=comparison, sample=sample or Sample()))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot write {output}: {error.strerror}; choose a file that you can write") from error
    return output


_OF_PLAY = ("rollout/", "loss/clip", "loss/ratio", "loss/sampler")
"""What describes episodes and their sampler."""


def collect(runs: Sequence[Path], *, comparison: dict[str, Any] | None, sample: Sample) -> dict[str, Any]:
    """Everything the page shows, as plain data."""
    folders = dict.fromkeys(Path(path) for path in runs)
    read = [_without_labels(part) for path in folders for part in read_run(path).by_policy()]
    labels = group_labels(read)
    budget = sample.megabytes * 1e6 / len(read)
    flat = [flatten(run.config) for run in read]
    return {
        "version": __version__,
        "definition": ONSET,
        **describe([row for run in read for row in run.metrics]),
        "runs": [
            {
                **_run(run, sample, budget, full=len(read) <= MOST_RUNS_IN_FULL),
                "group": label,
                "legend": short,
                "config": config,
            }
            for run, label, short, config in zip(read, labels, short_labels(labels), flat, strict=True)
        ],
        "differences": differing(flat),
        "comparison": comparison_chapter(comparison) if comparison else None,
    }


def _without_labels(run: RunData) -> RunData:
    """A run on preference files played nothing: what its rows say of episodes and samplers means nothing."""
    if run.config.get("stage") != "preference":
        return run
    rows = [{name: value for name, value in row.items() if not name.startswith(_OF_PLAY)} for row in run.metrics]
    return replace(run, metrics=rows)


def _run(run: RunData, sample: Sample, budget: float, *, full: bool) -> dict[str, Any]:
    onset = find_onset(run.metrics, run.events)
    others = all_metrics(run.metrics) if full else []
    incidents = [event["step"] for event in run.incidents[:MOST_INCIDENTS_WITH_EPISODES]]
    near = [onset.step, *incidents] if onset else incidents
    episodes = sample_episodes(run, sample, budget=budget, near=near)
    events = [event for event in run.events if event.get("kind") != LEAGUE]
    return {
        "name": run.name,
        "algorithm": run.algorithm,
        "meta": flatten(run.meta) if run.meta else {},
        "summary": summarize_run(run, onset),
        "onset": asdict(onset) if onset else None,
        "curves": curves(run.metrics, [*(panel.metric for panel in (*PANELS, *part_panels(run.metrics))), *others]),
        "others": others,
        "evaluations": _evaluations(run),
        "measures": held_out_measures(run.evals),
        "imitation": _imitation(run),
        "heat": heat_maps(run.turns),
        "league": _league(run),
        "events": [*map(_command, run.history), *map(_event, events[:MOST_EVENTS])],
        "events_left_out": max(0, len(events) - MOST_EVENTS),
        **episodes,
        "problems": run.problems,
    }


def _imitation(run: RunData) -> dict[str, Any] | None:
    """The curves of the imitation stage, and held-out success before and after it."""
    if not (run.path / SFT / "metrics.jsonl").is_file():
        return None
    stage = read_run(run.path / SFT)
    return {
        "curves": curves(stage.metrics, [panel.metric for panel in IMITATION_PANELS]),
        "steps": stage.metrics[-1]["step"] if stage.metrics else 0,
        "final": final_success(stage),
    }


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
    parts = [panel.evaluation for panel in part_panels(run.metrics)]
    measured = (*_EVALUATED, *parts, *held_out_measures(run.evals))
    names = [f"{name}{ending}" for name in measured for ending in ("", "_low", "_high")]
    return [{"step": row["step"], **{name: rounded(row[name]) for name in names if name in row}} for row in run.evals]


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
