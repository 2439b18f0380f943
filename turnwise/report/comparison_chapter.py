"""The chapter about a comparison, from the content of `comparison.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnwise.runs.journal import plain
from turnwise.runs.reading import Row


def comparison_chapter(content: Mapping[str, Any]) -> dict[str, Any]:
    """Sentences, intervals, figures and tables of a comparison; ValueError if they have not the form of one.

    `arms`, `notes` and `collapse_definition` are those of `turnwise.evaluate`'s comparison. A study may add its own
    `sentences` (texts), `intervals` ({"title", "note", "unit", "rows"}, each row {"name", "value", "low", "high"}),
    `tables` ({"title", "note", "columns", "rows"}) and `figures` ({"title", "note", "x", "log_x",
    "lines"}, each line {"name", "x", "y", "low", "high"}); every key is optional.
    """
    known: Row = plain(content, lambda _: None)
    arms = [arm for arm in known.get("arms") or [] if isinstance(arm, dict)]
    definition = known.get("collapse_definition")
    chapter = {
        "sentences": [
            *(known.get("sentences") or []),
            *(["Intervals are 95 %. " + definition] if definition else []),
            *(f"Note: {note}" for note in known.get("notes") or []),
        ],
        "intervals": [*_intervals(arms), *(known.get("intervals") or [])],
        "figures": known.get("figures") or [],
        "tables": [*_tables(arms, str(known.get("baseline", "the first"))), *(known.get("tables") or [])],
    }
    _require_form(chapter)
    return chapter


def _require_form(chapter: Mapping[str, Sequence[Any]]) -> None:
    """The page draws what it is given: of a file that somebody else wrote, it must not be given anything else."""
    sound = (
        all(isinstance(each, str) for each in chapter["sentences"])
        and all(_has_rows(each, "rows", _is_interval) for each in chapter["intervals"])
        and all(_has_rows(each, "lines", _is_line) for each in chapter["figures"])
        and all(map(_is_table, chapter["tables"]))
    )
    if not sound:
        raise ValueError("its sentences, intervals, figures or tables do not have the form that the page draws")


def _has_rows(item: Any, name: str, is_sound: Callable[[Row], bool]) -> bool:
    rows = item.get(name) if isinstance(item, dict) else None
    return isinstance(rows, list) and all(isinstance(row, dict) and is_sound(row) for row in rows)


def _is_interval(row: Row) -> bool:
    return isinstance(row.get("name"), str) and isinstance(row.get("points", []), list)


def _is_line(line: Row) -> bool:
    needed = ("x", "y", "low", "high") if "low" in line or "high" in line else ("x", "y")
    return all(isinstance(line.get(name), list) for name in needed)


def _is_table(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    columns, rows = item.get("columns", []), item.get("rows", [])
    return isinstance(columns, list) and isinstance(rows, list) and all(isinstance(row, list) for row in rows)


def _intervals(arms: Sequence[Row]) -> list[Row]:
    if not arms:
        return []
    rows = [
        {"name": arm["label"], **arm["final"]["iqm"], "points": [run["final"] for run in arm["runs"]]} for arm in arms
    ]
    note = "Held-out success at the end: interquartile mean with its 95 % interval; small dots are runs"
    return [{"title": "Final success", "note": note, "unit": "share of held-out tasks", "rows": rows}]


def _tables(arms: Sequence[Row], baseline: str) -> list[Row]:
    held = [arm for arm in arms if arm.get("versus")]
    tables = [
        {
            "title": "What each algorithm reached",
            "note": "Final success and success over training are interquartile means over runs.",
            "columns": [
                "Algorithm",
                "Runs",
                "Final success",
                "Over training",
                *(name for name, _ in _MEASURES),
                "Collapsed",
            ],
            "rows": [_reached(arm) for arm in arms],
        },
        {
            "title": f"Against {baseline}",
            "note": "Differences are paired by seed; p is Welch's, adjusted after Bonferroni; d is Cohen's.",
            "columns": ["Algorithm", "Difference", "Chance of better", "Welch's t", "p", "p adjusted", "d"],
            "rows": [_held_against(arm["label"], arm["versus"]) for arm in held],
        },
    ]
    return [table for table in tables if table["rows"]]


def _reached(arm: Row) -> list[Any]:
    runs = len(arm["runs"])
    measures = [arm.get(key) for _, key in _MEASURES]
    spreads = [_estimate(arm[name]["iqm"]) for name in ("final", "area")]
    return [arm["label"], runs, *spreads, *measures, f"{arm['collapsed']} of {runs}"]


def _held_against(label: str, versus: Row) -> list[Any]:
    numbers = [versus[name] for name in ("t", "p", "p_adjusted", "d")]
    return [label, _estimate(versus["difference"]), _estimate(versus["improvement"]), *numbers]


def _estimate(estimate: Row) -> str:
    low, high = estimate.get("low"), estimate.get("high")
    interval = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    return f"{estimate['value']:.3f}{interval}"


_MEASURES = (
    ("Clip fraction", "clip_fraction"),
    ("Gradient p99 / median", "gradient_tail"),
    ("Explained variance", "explained_variance"),
    ("Scale", "scale"),
    ("Seconds", "seconds"),
)
