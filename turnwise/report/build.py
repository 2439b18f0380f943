"""Write the report of one or several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnwise import __version__
from turnwise.guard.definition import ONSET
from turnwise.report.comparison_chapter import comparison_chapter
from turnwise.report.differences import differing, flatten, group_labels, short_labels
from turnwise.report.episodes import Sample, sample_episodes
from turnwise.report.page import render_page
from turnwise.report.panels import curves, describe, describe_panels, has_own_panel, heat_maps, metric_names
from turnwise.report.run_parts import evaluated, facts, happenings, imitation, plays, standing, without_play
from turnwise.runs.reading import RunData, read_run

MOST_RUNS_IN_FULL = 8
"""With more runs than this, every run has its curves and microscope, but only the named panels."""
MOST_INCIDENTS_WITH_EPISODES = 3
"""Incidents whose steps are in the sample of episodes."""
SFT = "sft"
"""The folder of the imitation stage inside a run's own."""


def write_report(
    runs: Sequence[Path],
    output: Path,
    *,
    comparison: dict[str, Any] | None = None,
    evaluations: dict[str, Any] | None = None,
    sample: Sample | None = None,
) -> Path:
    """Write one HTML file about the run folders: `write_report([Path("runs/a")], Path("report.html"))`.

    `comparison` is the content of `comparison.json` and adds a chapter; see `comparison_chapter` for its keys.
    `evaluations` adds another one in the same form, about saved evaluations.
    """
    if not runs:
        raise ValueError("no run was given; use `turnwise report runs/my-run`")
    page = render_page(collect(runs, comparison=comparison, evaluations=evaluations, sample=sample or Sample()))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot write {output}: {error.strerror}; choose a file that you can write") from error
    return output


def collect(
    runs: Sequence[Path],
    *,
    comparison: dict[str, Any] | None,
    evaluations: dict[str, Any] | None = None,
    sample: Sample,
) -> dict[str, Any]:
    """Everything the page shows, as plain data."""
    folders = dict.fromkeys(Path(path) for path in runs)
    read = [part for path in folders for part in read_run(path).by_policy()]
    read = [run if plays(run) else replace(run, metrics=[*map(without_play, run.metrics)]) for run in read]
    labels = group_labels(read)
    budget = sample.megabytes * 1e6 / len(read)
    flat = [flatten(run.config) for run in read]
    return {
        "version": __version__,
        "definition": ONSET,
        **describe(),
        "panels": describe_panels(metric_names(row for run in read for row in run.metrics)),
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
        "evaluations": comparison_chapter(evaluations) if evaluations else None,
    }


def _run(run: RunData, sample: Sample, budget: float, *, full: bool) -> dict[str, Any]:
    stands, names = standing(run), sorted(metric_names(run.metrics) - {"step"})
    others = [name for name in names if not has_own_panel(name)] if full else []
    incidents = [event["step"] for event in run.incidents[:MOST_INCIDENTS_WITH_EPISODES]]
    near = [stands["onset"]["step"], *incidents] if stands["onset"] else incidents
    return {
        **facts(run),
        **stands,
        "curves": curves(run.metrics, [*filter(has_own_panel, names), *others]),
        "others": others,
        **evaluated(run),
        "imitation": imitation(read_run(run.path / SFT)) if (run.path / SFT / "metrics.jsonl").is_file() else None,
        "heat": heat_maps(run.turns),
        **happenings(run),
        **sample_episodes(run, sample, budget=budget, near=near),
        "problems": run.problems,
    }
