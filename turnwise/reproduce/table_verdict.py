"""The verdict on a claim about tables, in Markdown: its criteria, and the players of each table side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from turnwise.evaluate.statistics import mean_interval
from turnwise.reproduce.conclusion import VERDICT, verdict_of
from turnwise.reproduce.criteria import Criterion, Outcome
from turnwise.reproduce.table_claim import TableClaim, TableScale
from turnwise.reproduce.verdict import Judgement
from turnwise.runs.disk import write_whole

Row = Mapping[str, Any]
_SIGNIFICANT = 0.05
_COLUMNS = {
    "win_rate": "wins",
    "coins": "coins a round",
    "call_success": "calls that win",
    "call_rate": "calls where it may",
    "discarded": "cards a round",
    "risk": "risk",
    "decision_ms": "ms a decision",
}
_SLOWEST = "slowest_ms"


def conclude_tables(claim: TableClaim, scale: TableScale, rows: Sequence[Row], output: Path) -> list[Judgement]:
    """Write the verdict into the study's folder; returns the findings, deciding ones first."""
    played = set(scale.tables or claim.tables)
    asked = [criterion for criterion in claim.criteria if played.issuperset(criterion.arms)]
    findings = sorted((_judge(criterion, scale, rows) for criterion in asked), key=lambda found: not found.decides)
    write_whole(output / VERDICT, "\n".join(_lines(claim, scale, rows, findings)).encode() + b"\n")
    return findings


def _judge(criterion: Criterion, scale: TableScale, rows: Sequence[Row]) -> Judgement:
    values = [_values(rows, table, criterion.metric) for table in criterion.arms]
    outcome: Outcome = "not decided"
    if missing := [table for table in criterion.arms if len(_of(rows, table)) < scale.seeds]:
        text = f"{missing[0]} is not played on all seeds"
    elif not all(values):
        text = f"the tables have no {criterion.metric}"
    else:
        outcome, text = criterion.judge(values)
    return Judgement(
        criterion=criterion.name, outcome=outcome, text=text, decides=criterion.decides, part=criterion.part
    )


def _of(rows: Sequence[Row], table: str) -> list[Row]:
    return [row for row in rows if row["arm"] == table]


def _values(rows: Sequence[Row], table: str, metric: str) -> dict[int, float]:
    """A metric of a table by seed."""
    return {row["seed"]: row["metrics"][metric] for row in _of(rows, table) if metric in row["metrics"]}


def _lines(claim: TableClaim, scale: TableScale, rows: Sequence[Row], findings: Sequence[Judgement]) -> Iterator[str]:
    yield f"# {claim.paper}: {verdict_of(findings)}\n"
    yield f"{claim.text.strip()}\n"
    yield "| criterion | verdict | numbers |\n|---|---|---|"
    for finding in findings:
        name = finding.name if finding.decides else f"*{finding.name}*"
        yield f"| {name} | {finding.outcome} | {finding.text} |"
    yield ""
    for table in scale.tables or claim.tables:
        if found := _of(rows, table):
            yield from _table_lines(claim, scale, table, found)


def _table_lines(claim: TableClaim, scale: TableScale, table: str, rows: Sequence[Row]) -> Iterator[str]:
    choice = claim.tables[table]
    said = ", ".join(f"{name} {value}" for name, value in choice.options.items()) or "rules as people play"
    yield f"## {table}\n"
    yield f"{said}; {choice.rounds or scale.rounds} rounds on each of {len(rows)} seeds. Means with 95% intervals.\n"
    timed = any(f"{_SLOWEST}/{player}" in row["metrics"] for row in rows for player in choice.players)
    heads = [*_COLUMNS.values(), *(["slowest ms, of all seeds"] if timed else [])]
    yield f"| player | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}"
    for player in choice.players:
        cells = [_cell([row["metrics"].get(f"{metric}/{player}") for row in rows]) for metric in _COLUMNS]
        if timed:
            slowest = [row["metrics"].get(f"{_SLOWEST}/{player}", 0.0) for row in rows]
            cells.append(f"{max(slowest):.3g}")
        yield f"| {player} | {' | '.join(cells)} |"
    yield ""
    yield "Pairs: difference, Cohen's d, and on how many seeds p (Welch, Bonferroni) is below 0.05.\n"
    yield from _pair_lines(rows)
    yield ""


def _pair_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Each pair and metric: means over seeds, and on how many seeds chance does not explain the difference."""
    pairs: dict[str, dict[str, list[Row]]] = {}
    for test in (test for row in rows for test in row["tests"]):
        of_pair = pairs.setdefault(f"{test['first']}, {test['second']}", {})
        of_pair.setdefault(test["metric"], []).append(test)
    metrics = [metric for metric in _COLUMNS if any(metric in of_pair for of_pair in pairs.values())]
    yield f"| pair | {' | '.join(_COLUMNS[metric] for metric in metrics)} |\n|---|{'---|' * len(metrics)}"
    for pair, found in pairs.items():
        yield f"| {pair} | {' | '.join(_compared(found.get(metric, [])) for metric in metrics)} |"


def _compared(tests: Sequence[Row]) -> str:
    if not tests:
        return ""
    difference, d = fmean(test["difference"] for test in tests), fmean(test["d"] for test in tests)
    below = sum(test["p"] < _SIGNIFICANT for test in tests)
    return f"{difference:+.3g}, {d:+.2f}, {below} of {len(tests)}"


def _cell(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    if len(there) < 2:
        return ", ".join(f"{value:.3g}" for value in there)
    low, high = mean_interval(there)
    return f"{fmean(there):.3g} ({low:.3g} to {high:.3g})"
