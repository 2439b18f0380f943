"""A study's result in Markdown for the docs: the verdict, one table per block of runs, the figure's numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from turnwise.reproduce.claim import Claim, StudyScale
from turnwise.reproduce.figure import Point, draw_rates
from turnwise.reproduce.plan import Cell, block_cells, stress_cell, study_runs
from turnwise.reproduce.table import Row, Table, final_interval, rows_on
from turnwise.reproduce.verdict import Judgement, judge, overall, usable_bar
from turnwise.runs.disk import write_whole

VERDICT, FIGURE = "verdict.md", "rates.svg"


def conclude(claim: Claim, scale: StudyScale, rows: Sequence[Row], output: Path) -> list[Judgement]:
    """Write verdict and figure into the study's folder; returns the findings."""
    findings = judge(claim, scale, rows)
    write_whole(output / VERDICT, "\n".join(_lines(claim, scale, rows, findings)).encode() + b"\n")
    if scale.tasks:
        return findings
    table = Table(rows)
    drawn = [arm for arm in claim.arms if arm in table.arms(scale)]
    curves = {arm: points for arm in drawn if (points := _points(scale, table, arm))}
    if curves:  # intervals need two seeds
        title = f"{scale.updates} updates a rollout: success against learning rate"
        bar = None if claim.thresholds is None else usable_bar(claim.thresholds, scale, table)
        figure = draw_rates(curves, title=title, bar=bar)
        write_whole(output / FIGURE, figure.encode())
    return findings


def verdict_of(findings: Sequence[Judgement]) -> str:
    """One word, or one for each part of the claim: `A pass, B not decided`."""
    parts = dict.fromkeys(finding.part for finding in findings if finding.decides)
    verdicts = [(part, overall([finding for finding in findings if finding.part == part])) for part in parts]
    return ", ".join(f"{part} {outcome}".strip() for part, outcome in verdicts) or "not decided"


def _lines(claim: Claim, scale: StudyScale, rows: Sequence[Row], findings: Sequence[Judgement]) -> Iterator[str]:
    yield f"# {claim.paper}: {verdict_of(findings)}\n"
    yield f"{claim.text.strip()}\n"
    planned = study_runs(scale)
    tables = {task: Table(rows_on(task, rows)) for task in scale.tasks or [""]}
    done = sum(run.seed in tables[run.task].seeds(run.cell) for run in planned)
    yield f"{done} of {len(planned)} runs are complete; {scale.seeds} seeds from {scale.first_seed}.\n"
    yield "| criterion | verdict | numbers |\n|---|---|---|"
    for finding in findings:
        name = finding.name if finding.decides else f"*{finding.name}*"
        yield f"| {name} | {finding.outcome} | {finding.text} |"
    yield ""
    if not all(finding.decides for finding in findings):
        yield "Criteria in italics do not decide the claim; they say more about the effect and its cause.\n"
    if scale.tasks:
        yield from _across_tasks(scale, tables)
    metrics = list(dict.fromkeys(["success", *(criterion.metric for criterion in claim.criteria)]))
    for task, table in tables.items():
        for name, block in scale.blocks.items():
            lines = [line for cell in block_cells(scale.on(task), block) if (line := _cell_line(table, cell, metrics))]
            if lines:
                yield f"## {f'{task}, {name}' if task else name}\n"
                yield _header(metrics)
                yield from lines
                yield ""


def _across_tasks(scale: StudyScale, tables: Mapping[str, Table]) -> Iterator[str]:
    """One line for each arm: success at the end on every task, with the start below."""
    arms = dict.fromkeys(run.cell.arm for run in study_runs(scale))
    yield f"| success | {' | '.join(scale.tasks)} |\n|---|{'---|' * len(scale.tasks)}"
    for arm in arms:
        cells = {task: stress_cell(scale.on(task), arm) for task in scale.tasks}
        yield f"| {arm} | {' | '.join(_end(tables[task], cell, 'success') for task, cell in cells.items())} |"
    starts = [_mean_start(tables[task], [stress_cell(scale.on(task), arm) for arm in arms]) for task in scale.tasks]
    yield f"| start | {' | '.join(starts)} |\n"


def _mean_start(table: Table, cells: Sequence[Cell]) -> str:
    first = [value for cell in cells for value in table.values(cell, "success", "first").values()]
    return f"{fmean(first):.2f}" if first else ""


def _header(metrics: Sequence[str]) -> str:
    ends = ["final (95%)" if metric == "success" else f"{metric} (95%)" for metric in metrics]
    columns = ["arm", "rate", "updates", "lag", "n", *ends, "area", "collapsed", "clip fraction"]
    columns += ["gradient p99 / median", "scale", "explained variance"]
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def _cell_line(table: Table, cell: Cell, metrics: Sequence[str]) -> str:
    runs = list(table.seeds(cell).values())
    if not runs:
        return ""
    ends = [_end(table, cell, metric) for metric in metrics]
    # Medians: if a dead run's returns no longer vary, shares of their variance are unbounded.
    numbers = [_median(runs, name) for name in ("clip_fraction", "gradient_tail", "scale", "explained_variance")]
    cells = [
        cell.arm,
        f"{fmean(row['applied_rate'] for row in runs):.2g}",
        str(cell.updates),
        str(cell.lag),
        str(len(runs)),
        *ends,
        f"{fmean(row['area'] for row in runs):.2f}",
        f"{table.collapsed(cell)}/{len(runs)}",
        *numbers,
    ]
    return f"| {' | '.join(cells)} |"


def _end(table: Table, cell: Cell, metric: str) -> str:
    """Mean and interval of the runs' final values; for one run just its value."""
    found = final_interval(table, cell, metric)
    if found is None:
        return ", ".join(format(value, ".2f") for value in table.values(cell, metric).values())
    mean, interval = found
    digits = ".1e" if 0 < abs(mean) < 0.005 else ".2f"  # a KL of 1e-5 is not 0.00
    return f"{mean:{digits}} ({interval.low:{digits}} to {interval.high:{digits}})"


def _median(runs: Sequence[Row], name: str) -> str:
    values = [row[name] for row in runs if row[name] is not None]
    return f"{median(values):.2f}" if values else ""


def _points(scale: StudyScale, table: Table, arm: str) -> list[Point]:
    points: list[Point] = []
    for rate in table.curve(scale, arm):
        found = final_interval(table, Cell(arm=arm, rate=rate, updates=scale.updates))
        if found is not None:
            points.append((rate, *found))
    return points
