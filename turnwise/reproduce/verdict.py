"""The verdict: each criterion of a claim checked against the runs, by thresholds fixed in advance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np

from turnwise.evaluate.statistics import Interval, paired_difference
from turnwise.reproduce.claim import Claim, StudyScale, Thresholds
from turnwise.reproduce.criteria import Criterion, Outcome
from turnwise.reproduce.plan import Cell, stress_cell, study_runs
from turnwise.reproduce.table import Row, Table, missing_runs, rows_on

_RESAMPLES = 1_000


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """One criterion: `Judgement(criterion="st-ppo holds", outcome="pass", text="0 of 10 collapsed, at most 1 may")`."""

    criterion: str
    outcome: Outcome
    text: str
    decides: bool = True
    """Whether it decides the claim."""
    part: str = ""
    """The part of the claim, if it has several."""

    @property
    def name(self) -> str:
        """`A: success of rebn at least 0.95`."""
        return f"{self.part}: {self.criterion}" if self.part else self.criterion


_Check = Callable[[Thresholds, StudyScale, Table], Judgement]


def judge(claim: Claim, scale: StudyScale, rows: Sequence[Row]) -> list[Judgement]:
    """All findings, deciding ones first; task by task if the scale has several."""
    if scale.tasks:
        found = [(task, each) for task in scale.tasks for each in judge(claim, scale.on(task), rows_on(task, rows))]
        return [replace(finding, part=f"{finding.part} {task}".lstrip()) for task, finding in found]
    table, limits = Table(rows), claim.thresholds
    planned = {run.cell for run in study_runs(scale)}
    findings = [_criterion(criterion, scale, table) for criterion in _asked(claim, scale, planned)]
    if limits is not None:
        findings += [check(limits, scale, table) for check in _asked_checks(limits, scale, planned)]
        controls = [control for control in claim.controls if stress_cell(scale, control) in planned]
        findings += [_beats(control, limits, scale, table) for control in controls]
    return sorted(findings, key=lambda finding: not finding.decides)


def _asked(claim: Claim, scale: StudyScale, planned: Collection[Cell]) -> list[Criterion]:
    """The criteria of the parts that the scale is for: of which it plans some runs, or those that it names.

    One that decides stays even if the scale has no runs for it, so that a part is never decided by half of it.
    """
    has_runs = {criterion: set(_cells(criterion, scale)) <= set(planned) for criterion in claim.criteria}
    parts = scale.parts if scale.parts is not None else {each.part for each, found in has_runs.items() if found}
    return [each for each, found in has_runs.items() if each.part in parts and (found or each.decides)]


def _asked_checks(limits: Thresholds, scale: StudyScale, planned: Collection[Cell]) -> list[_Check]:
    """All checks of the thresholds if the scale plans runs for any: half of them decide nothing; otherwise none."""
    arms = (limits.method, limits.baseline)
    stress = all(stress_cell(scale, arm) in planned for arm in arms)
    rates = all(len(_rate_cells(scale, [arm])) > 1 for arm in arms)
    on_policy = all(cell in planned for cell in _on_policy_cells(limits, scale))
    if not (stress or rates or on_policy):
        return []
    return [_baseline_collapses, _method_holds, _method_is_better, _range_is_wider, _costs_nothing]


def overall(findings: Sequence[Judgement]) -> Outcome:
    """The claim's verdict: it passes if every deciding criterion passes, and fails if any fails."""
    outcomes = {finding.outcome for finding in findings if finding.decides}
    if not outcomes:
        return "not decided"  # nothing that decides was asked
    return "fail" if "fail" in outcomes else "not decided" if "not decided" in outcomes else "pass"


def usable_range(curve: Mapping[float, float], bar: float) -> Interval | None:
    """The longest range of learning rates over which a curve is at or above the bar.

    Between two rates the curve is linear in the logarithm of the rate. It stops at the ends of the grid, so a range
    that reaches an end may be wider in truth. None if no rate reaches the bar.
    """
    rates = sorted(curve)
    stretches: list[Interval] = []
    low: float | None = None
    for index, rate in enumerate(rates):
        inside = curve[rate] >= bar
        if inside and low is None:
            low = rate if index == 0 else _crossing(curve, rates[index - 1], rate, bar)
        if low is not None and (not inside or index == len(rates) - 1):
            high = rate if inside else _crossing(curve, rates[index - 1], rate, bar)
            stretches.append(Interval(low, high))
            low = None
    return max(stretches, key=lambda stretch: stretch.high / stretch.low, default=None)


def usable_bar(limits: Thresholds, scale: StudyScale, table: Table) -> float:
    """The success that makes a rate usable: one bar for all arms."""
    means = [mean for arm in table.arms(scale) for mean in table.curve(scale, arm).values()]
    return limits.usable * max(means, default=0.0)


def _crossing(curve: Mapping[float, float], first: float, second: float, bar: float) -> float:
    """Where the line between two rates meets the bar."""
    share = (bar - curve[first]) / (curve[second] - curve[first])
    return float(np.exp(log(first) + share * (log(second) - log(first))))


def _criterion(criterion: Criterion, scale: StudyScale, table: Table) -> Judgement:
    """One of the claim's own criteria; undecided until every run that it reads is complete."""
    cells = _cells(criterion, scale)
    outcome: Outcome = "not decided"
    if not (text := missing_runs(scale, table, cells)):
        values = table.compared(criterion, cells)
        outcome, text = criterion.judge(values) if all(values) else (outcome, f"the runs have no {criterion.metric}")
    return Judgement(
        criterion=criterion.name, outcome=outcome, text=text, decides=criterion.decides, part=criterion.part
    )


def _cells(criterion: Criterion, scale: StudyScale) -> list[Cell]:
    """Those of its arms."""
    updates = criterion.updates or scale.updates
    return [replace(stress_cell(scale, arm), updates=updates) for arm in criterion.arms]


def _baseline_collapses(limits: Thresholds, scale: StudyScale, table: Table) -> Judgement:
    cell = stress_cell(scale, limits.baseline)
    died, of = table.collapsed(cell), len(table.seeds(cell))
    return Judgement(
        criterion=f"{cell.arm} collapses",
        outcome=_whole(scale, of, died >= limits.baseline_collapses * of),
        text=f"{died} of {of} runs at rate {cell.rate:g} with {cell.updates} updates a rollout; it takes "
        f"{limits.baseline_collapses:.0%}",
    )


def _method_holds(limits: Thresholds, scale: StudyScale, table: Table) -> Judgement:
    cell = stress_cell(scale, limits.method)
    died, of = table.collapsed(cell), len(table.seeds(cell))
    return Judgement(
        criterion=f"{cell.arm} holds",
        outcome=_whole(scale, of, died <= limits.method_collapses * of),
        text=f"{died} of {of} runs collapsed; at most {limits.method_collapses:.0%} may",
    )


def _method_is_better(limits: Thresholds, scale: StudyScale, table: Table) -> Judgement:
    cells = [stress_cell(scale, arm) for arm in (limits.method, limits.baseline)]
    found = _difference(table, *cells)
    if found is None:
        return _undecided(f"{limits.method} ends higher", "too few seeds in common")
    mean, interval = found
    outcome = "pass" if interval.low > 0 else "fail"
    return Judgement(
        criterion=f"{limits.method} ends higher",
        outcome=_whole(scale, min(len(table.seeds(cell)) for cell in cells), outcome == "pass"),
        text=f"difference of final success {_signed(mean, interval)}; the interval must be above 0",
    )


def _range_is_wider(limits: Thresholds, scale: StudyScale, table: Table) -> Judgement:
    bar = usable_bar(limits, scale, table)
    criterion = f"{limits.method} is usable over a wider range of rates"
    if missing := missing_runs(scale, table, _rate_cells(scale, (limits.method, limits.baseline))):
        return _undecided(criterion, missing)
    curves = {arm: table.curve(scale, arm) for arm in (limits.method, limits.baseline)}
    if min(map(len, curves.values())) < 2:
        return _undecided(criterion, "too few rates")
    ranges = {arm: usable_range(curve, bar) for arm, curve in curves.items()}
    if ranges[limits.baseline] is None:
        return _undecided(criterion, f"{limits.baseline} does not reach a mean of {bar:.2f} at any rate")
    widths = {arm: _width(found) for arm, found in ranges.items()}
    text = "; ".join(
        f"{arm} {'nowhere' if found is None else f'{found.low:.2g} to {found.high:.2g}'}, a factor of {widths[arm]:.1f}"
        for arm, found in ranges.items()
    )
    ratio = widths[limits.method] / widths[limits.baseline]
    return Judgement(
        criterion=criterion,
        outcome="pass" if ratio >= limits.range_ratio else "fail",
        text=f"{text} (mean success at least {bar:.2f}): {ratio:.1f} times as wide (95% "
        f"{_resampled_ratio(limits, scale, table, bar)}); it takes {limits.range_ratio:g}",
    )


def _width(found: Interval | None) -> float:
    return 1.0 if found is None else found.high / found.low


def _resampled_ratio(limits: Thresholds, scale: StudyScale, table: Table, bar: float) -> str:
    """Interval of the ratio of widths: a bootstrap over seeds with the bar fixed."""
    rng, ratios = np.random.default_rng(0), list[float]()
    finals = {
        arm: {rate: table.finals(Cell(arm=arm, rate=rate, updates=scale.updates)) for rate in table.curve(scale, arm)}
        for arm in (limits.method, limits.baseline)
    }
    seeds = sorted({seed for by_rate in finals.values() for by_seed in by_rate.values() for seed in by_seed})
    for _ in range(_RESAMPLES):
        drawn = rng.choice(seeds, len(seeds))
        widths = [_width(usable_range(_drawn_curve(by_rate, drawn), bar)) for by_rate in finals.values()]
        ratios.append(widths[0] / widths[1])
    low, high = np.quantile(ratios, (0.025, 0.975))
    return f"{low:.1f} to {high:.1f}"


def _drawn_curve(by_rate: Mapping[float, Mapping[int, float]], drawn: np.ndarray) -> dict[float, float]:
    """Means over the drawn seeds; a rate that has none of them keeps its own mean."""
    kept = {rate: [finals[seed] for seed in drawn if seed in finals] for rate, finals in by_rate.items()}
    return {rate: float(np.mean(values or list(by_rate[rate].values()))) for rate, values in kept.items()}


def _costs_nothing(limits: Thresholds, scale: StudyScale, table: Table) -> Judgement:
    criterion = f"on-policy {limits.method} costs nothing"
    cells = _on_policy_cells(limits, scale)
    if missing := missing_runs(scale, table, cells):
        return _undecided(criterion, missing)
    found = _difference(table, *cells)
    if found is None:
        return _undecided(criterion, "too few runs with one update a rollout")
    mean, interval = found
    outcome: Outcome = "fail" if interval.high < 0 else "pass" if interval.low > -limits.margin else "not decided"
    return Judgement(
        criterion=criterion,
        outcome=outcome,
        text=f"with one update a rollout the difference is {_signed(mean, interval)}; it must not be below "
        f"-{limits.margin:g}",
    )


def _on_policy_cells(limits: Thresholds, scale: StudyScale) -> list[Cell]:
    return [Cell(arm=arm, rate=scale.rate, updates=1) for arm in (limits.method, limits.baseline)]


def _beats(control: str, limits: Thresholds, scale: StudyScale, table: Table) -> Judgement:
    """Whether the method beats a control; one that does as well explains the effect away."""
    criterion = f"{limits.method} beats {control}"
    cells = [stress_cell(scale, arm) for arm in (limits.method, control)]
    if missing := missing_runs(scale, table, cells):
        return _undecided(criterion, missing, decides=False)
    found = _difference(table, *cells)
    if found is None:
        return _undecided(criterion, "too few seeds in common", decides=False)
    mean, interval = found
    outcome: Outcome = "pass" if interval.low > 0 else "fail" if interval.high < limits.margin else "not decided"
    died = f"{table.collapsed(cells[1])} of {len(table.seeds(cells[1]))} runs of {control} collapsed"
    return Judgement(criterion=criterion, outcome=outcome, text=f"{_signed(mean, interval)}; {died}", decides=False)


def _difference(table: Table, first: Cell, second: Cell) -> tuple[float, Interval] | None:
    """Mean and 95% interval of the paired difference of final success."""
    one, other = table.finals(first), table.finals(second)
    seeds = sorted(one.keys() & other.keys())
    if len(seeds) < 3:
        return None
    pairs = [one[seed] for seed in seeds], [other[seed] for seed in seeds]
    return float(np.mean(pairs[0]) - np.mean(pairs[1])), paired_difference(*pairs)


def _whole(scale: StudyScale, seeds: int, holds: bool) -> Outcome:
    """Undecided until every seed has run."""
    return "not decided" if seeds < scale.seeds else "pass" if holds else "fail"


def _rate_cells(scale: StudyScale, arms: Collection[str]) -> set[Cell]:
    """Planned cells of these arms that differ only in the learning rate."""
    cells = {run.cell for run in study_runs(scale) if run.cell.arm in arms}
    return {cell for cell in cells if (cell.updates, cell.lag) == (scale.updates, 0)}


def _undecided(criterion: str, why: str, *, decides: bool = True) -> Judgement:
    return Judgement(criterion=criterion, outcome="not decided", text=why, decides=decides)


def _signed(mean: float, interval: Interval) -> str:
    return f"{mean:+.2f} (95% {interval.low:+.2f} to {interval.high:+.2f})"
