"""Saved evaluations side by side: numbers with intervals, and differences on equal tasks, for terminal and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from turnwise.evaluate.comparison import Estimate
from turnwise.evaluate.saved import Difference, SavedEvaluation, difference, read_evaluation, unlike
from turnwise.runs.rows import is_number

_COLUMNS = ("success", "reward", "turns", "valid")


def read_evaluations(files: Sequence[Path]) -> dict[str, SavedEvaluation]:
    """The evaluations of these files, each under a name of its own."""
    return name_evaluations({file: read_evaluation(file) for file in dict.fromkeys(files)})


def name_evaluations(read: Mapping[Path, SavedEvaluation]) -> dict[str, SavedEvaluation]:
    """Each under the name of its model, and of its file where models repeat."""
    labels = [each.label for each in read.values()]
    named: dict[str, SavedEvaluation] = {}
    for file, each in read.items():
        name = each.label if labels.count(each.label) == 1 else f"{each.label} ({file.stem})"
        named[name if name not in named else f"{each.label} ({file})"] = each
    return named


def evaluations_chapter(evaluations: Mapping[str, SavedEvaluation]) -> dict[str, Any]:
    """What the report's comparison chapter takes: sentences, intervals, tables and notes."""
    names, each = list(evaluations), list(evaluations.values())
    others = {name: difference(each[0], other) for name, other in list(evaluations.items())[1:]}
    notes = [note for other in each[1:] if (note := unlike(each[0], other))]
    notes += [f"{name} has no task in common with {names[0]}." for name, found in others.items() if found is None]
    return {
        "sentences": [
            "Intervals are 95 %, over tasks. Differences are paired: on the tasks that both played. Theirs count two "
            "more tasks that nobody saw, one as much better and one as much worse as can be: few tasks stay uncertain."
        ],
        "notes": notes,
        "intervals": [
            {
                "title": "Held-out success",
                "note": "Share of held-out tasks that were solved, with its 95 % interval",
                "unit": "share of held-out tasks",
                "rows": [{"name": name, **_estimate(one, "success")} for name, one in evaluations.items()],
            }
        ],
        "tables": [_results(evaluations), *([_differences(names[0], others)] if any(others.values()) else [])],
    }


def _results(evaluations: Mapping[str, SavedEvaluation]) -> dict[str, Any]:
    several = {one.env.get("id") for one in evaluations.values()}
    rows = [
        [
            name,
            str(one.env.get("id")),
            *(_shown(_estimate(one, column)) for column in _COLUMNS),
            len(one.outcomes),
            sum(len(row["success"]) + row["faults"] for row in one.tasks),
            str(one.settings.get("temperature")),
        ]
        for name, one in evaluations.items()
    ]
    title = "Evaluations" if len(several) > 1 else f"Evaluations on {several.pop()}"
    columns = ["Model", "Environment", *map(str.capitalize, _COLUMNS), "Tasks", "Episodes", "Temperature"]
    return {"title": title, "columns": columns, "rows": rows}


def _differences(first: str, others: Mapping[str, Difference | None]) -> dict[str, Any]:
    rows = [
        [name, _of(found.success), _of(found.reward), found.better, found.worse, found.tasks]
        for name, found in others.items()
        if found is not None
    ]
    return {
        "title": f"Difference from {first}, on equal tasks",
        "note": f"Each minus {first}; where an interval excludes 0, chance alone rarely explains it.",
        "columns": ["Model", "Success", "Reward", "Better on", "Worse on", "Tasks"],
        "rows": rows,
    }


def _estimate(evaluation: SavedEvaluation, name: str) -> dict[str, float | None]:
    keys = {"value": f"eval/{name}", "low": f"eval/{name}_low", "high": f"eval/{name}_high"}
    found = {key: evaluation.metrics.get(metric) for key, metric in keys.items()}
    if found["value"] is None and name in ("success", "reward") and evaluation.outcomes:  # several policies
        outcomes = [each[name] for each in evaluation.outcomes.values()]
        found["value"] = sum(outcomes) / len(outcomes)
    return {key: float(value) if is_number(value) else None for key, value in found.items()}


def _of(estimate: Estimate) -> str:
    return _shown(asdict(estimate), form="+.3f")


def _shown(estimate: Mapping[str, float | None], *, form: str = ".3f") -> str:
    value, low, high = (estimate[key] for key in ("value", "low", "high"))
    if value is None:
        return "–"
    return f"{value:{form}}" if low is None or high is None else f"{value:{form}} [{low:{form}}, {high:{form}}]"
