"""One run in a few numbers and one sentence: the head of the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnwise.report.onset import Onset
from turnwise.report.panels import is_number, rounded
from turnwise.report.reading import Row, RunData
from turnwise.words import counted

LAST_SHARE = 0.1
"""Final success is the mean over this share of the steps, the last ones."""
EVALUATED = ("eval/success", "eval/success_low", "eval/success_high", "eval/episodes")


def summarize_run(run: RunData, onset: Onset | None) -> dict[str, Any]:
    """The numbers of the table of runs, and the run's verdict."""
    success = [row["rollout/success"] for row in run.metrics if is_number(row.get("rollout/success"))]
    summary = {
        "steps": run.metrics[-1]["step"] if run.metrics else 0,
        "asked": _planned(run),
        "final": rounded(final_mean(success)),
        "best": rounded(max(success, default=None)),
        "evaluation": _last_evaluation(run),
        "incidents": len(run.incidents),
        "seconds": rounded(sum(row["time/step"] for row in run.metrics if is_number(row.get("time/step")))),
    }
    return {**summary, "verdict": _verdict(summary, run, onset), "tone": _tone(run, onset)}


def final_mean(values: Sequence[float]) -> float | None:
    """Mean over the last tenth of the steps, at least one."""
    last = values[-max(1, round(LAST_SHARE * len(values))) :]
    return sum(last) / len(last) if last else None


def _verdict(summary: Row, run: RunData, onset: Onset | None) -> str:
    parts = [_outcome(summary), _held_out(summary["evaluation"]), _health(run, onset), _ending(summary, run)]
    return " ".join(part for part in parts if part)


def _outcome(summary: Row) -> str:
    if summary["final"] is None:
        return "No step was recorded."
    return f"Success {summary['final']:.2f} at the end of {counted(summary['steps'], 'step')}, {summary['best']:.2f} at its best."


def _held_out(evaluation: Row | None) -> str:
    if not evaluation or evaluation["eval/success"] is None:
        return ""
    low, high = evaluation["eval/success_low"], evaluation["eval/success_high"]
    interval = f" (95 % interval {low:.2f} to {high:.2f})" if low is not None and high is not None else ""
    before = "" if evaluation["before"] is None else f", {evaluation['before']:.2f} before training"
    return f"Held-out success {evaluation['eval/success']:.2f}{interval} at step {evaluation['step']}{before}."


def _health(run: RunData, onset: Onset | None) -> str:
    if onset is None:
        return "No guard incident, and no fall of success."
    if onset.source == "change":
        return f"The run went wrong: {onset.signal} moved first, at step {onset.step}."
    count = len(run.incidents)
    return f"{count} guard {'incident' if count == 1 else 'incidents'}, the first at step {onset.step}: {onset.signal}."


def _ending(summary: Row, run: RunData) -> str:
    ends = [event for event in run.events if event.get("kind") in ("finished", "stopped")]
    if ends and ends[-1]["kind"] == "stopped":
        return f"It was stopped at step {ends[-1]['step']}."
    if not ends and summary["asked"] and summary["steps"] < summary["asked"]:
        return f"It has not finished: {summary['asked']} steps were asked for."
    return ""


def _tone(run: RunData, onset: Onset | None) -> str:
    if onset is None:
        return "good" if run.metrics else "unknown"
    return "watch" if onset.source == "guard" and _only_warned(run) else "bad"


def _only_warned(run: RunData) -> bool:
    return all(incident.get("action", "none") in ("none", "skip") for incident in run.incidents)


def _planned(run: RunData) -> int | None:
    section = run.config.get("train")
    steps = section.get("steps") if isinstance(section, dict) else None
    return steps if isinstance(steps, int) else None


def _last_evaluation(run: RunData) -> Row | None:
    rows = [row for row in run.evals if is_number(row.get("eval/success"))]
    if not rows:
        return None
    first, last = rows[0], rows[-1]
    before = first["eval/success"] if first["step"] == 0 and len(rows) > 1 else None
    return {"step": last["step"], "before": rounded(before), **{name: rounded(last.get(name)) for name in EVALUATED}}
