"""A comparison as tables for the terminal."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from turnwise.evaluate.comparison import ArmResult, Comparison, Estimate, Versus


def comparison_tables(comparison: Comparison) -> Group:
    """Each algorithm's results, its difference from the first, and caveats."""
    parts: list[Table | Text] = [_results(comparison)]
    if any(arm.versus for arm in comparison.arms):
        parts += [Text(), _differences(comparison)]
    parts += [Text(), Text("Intervals are 95%. " + comparison.collapse_definition, "dim")]
    parts += [Text(f"Note: {note}", "yellow") for note in comparison.notes]
    return Group(*parts)


def _results(comparison: Comparison) -> Table:
    headings = (
        "runs",
        "final success",
        "over training",
        "collapsed",
        "clipped",
        "gradient p99/median",
        "scale",
        "time",
    )
    table = _table("algorithm", *headings)
    for arm in comparison.arms:
        table.add_row(Text(arm.label), *_result_cells(arm))
    table.caption = "final success and success over training: interquartile means"
    return table


def _result_cells(arm: ArmResult) -> list[str]:
    return [
        str(len(arm.runs)),
        _estimate(arm.final.iqm),
        _estimate(arm.area.iqm),
        f"{arm.collapsed} of {len(arm.runs)}",
        _number(arm.clip_fraction, ".3f"),
        _number(arm.gradient_tail, ".1f"),
        _number(arm.scale, ".2f"),
        _duration(arm.seconds),
    ]


def _differences(comparison: Comparison) -> Table:
    table = _table(
        f"against {comparison.baseline}", "difference", "chance of better", "Welch's t", "p", "adjusted", "d"
    )
    for arm in comparison.arms:
        if arm.versus:
            table.add_row(Text(arm.label), *_difference_cells(arm.versus))
    table.caption = (
        "difference: paired by seed; Welch's t and d (Cohen's) take the runs as unpaired; p adjusted after Bonferroni"
    )
    return table


def _difference_cells(versus: Versus) -> list[str]:
    return [
        _estimate(versus.difference, "+.3f"),
        _estimate(versus.improvement, ".2f"),
        f"{versus.t:.2f} ({versus.freedom:.1f})",
        _p(versus.p),
        _p(versus.p_adjusted),
        f"{versus.d:+.2f}",
    ]


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, caption_justify="left", caption_style="dim")
    for place, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if place else "left", overflow="fold")
    return table


def _estimate(estimate: Estimate, form: str = ".3f") -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:{form}}"
    return f"{estimate.value:{form}} ({estimate.low:{form}} to {estimate.high:{form}})"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "<0.001"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
