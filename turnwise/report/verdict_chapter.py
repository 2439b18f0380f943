"""The chapter about a paper's claim, from the `verdict.md` and the `results.json` of its study."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from turnwise.runs.reading import Row
from turnwise.runs.rows import is_number

_FACTORS = ("task", "arm", "rate", "updates", "lag")
"""What tells the runs of a study apart, besides their seeds."""


def verdict_chapter(verdict: str, results: Sequence[Row]) -> dict[str, Any]:
    """What `comparison_chapter` takes; ValueError for a text that is no verdict."""
    if not verdict.startswith("# "):
        raise ValueError("a verdict begins with its heading")
    sentences: list[str] = []
    tables: list[dict[str, Any]] = []
    title = ""
    for block in _blocks(verdict):
        if block[0].startswith("|"):
            tables.append({"title": title, "marked": True, **_table(block)})
            title = ""
        elif block[0].startswith("## "):
            title = block[0].removeprefix("## ")
        else:
            sentences.append(" ".join(block).removeprefix("# "))
    return {"sentences": sentences, "intervals": _finals(results), "tables": tables}


def _blocks(text: str) -> list[list[str]]:
    """The lines between empty ones."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip():
            blocks[-1].append(line.strip())
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]


def _table(lines: Sequence[str]) -> dict[str, Any]:
    columns, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {"columns": columns, "rows": rows}


def _finals(results: Sequence[Row]) -> list[dict[str, Any]]:
    """Held-out success at the end of every run, under what its runs have in common."""
    measured = [row for row in results if is_number(row.get("final"))]
    told = [name for name in _FACTORS if name == "arm" or len({str(row.get(name)) for row in measured}) > 1]
    cells: dict[str, list[float]] = {}
    for row in measured:
        cells.setdefault(", ".join(str(row[name]) for name in told if row.get(name) not in (None, "")), []).append(
            row["final"]
        )
    if not cells:
        return []
    rows = [{"name": name, "value": fmean(finals), "points": finals} for name, finals in cells.items()]
    note = "Held-out success at the end, the mean of the complete runs; small dots are runs"
    return [{"title": "Final success", "note": note, "unit": "share of held-out tasks", "rows": rows}]
