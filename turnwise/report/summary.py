"""One run in a few numbers and one sentence: the top of the report."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from turnwise.guard.onset import Onset
from turnwise.report.columns import rounded
from turnwise.runs.reading import Row, RunData
from turnwise.runs.rows import is_number
from turnwise.words import counted

_THREE_DIGITS = Context(prec=3, rounding=ROUND_HALF_UP)
LAST_SHARE = 0.1
"""Training success at the end is the mean over this last share of the steps."""


def summarize_run(run: RunData, onset: Onset | None) -> dict[str, Any]:
    """The numbers for the table of runs, and the run's verdict, which states them in words.

    Final success comes from the last evaluation on held-out tasks, as in a comparison of runs.
    """
    success = [row["rollout/success"] for row in run.metrics if is_number(row.get("rollout/success"))]
    summary = {
        "steps": run.metrics[-1]["step"] if run.metrics else 0,
        "asked": _planned(run),
        "final": final_success(run),
        "training": rounded(last_mean(success)),
        "best": rounded(max(success, default=None)),
        "incidents": len(run.incidents),
        "seconds": rounded(sum(row["time/step"] for row in run.metrics if is_number(row.get("time/step")))),
    }
    return {**summary, "verdict": _verdict(summary, run, onset), "tone": _tone(summary, run, onset)}


def last_mean(values: Sequence[float]) -> float | None:
    """Mean over the last tenth of the steps, at least one."""
    last = values[-max(1, round(LAST_SHARE * len(values))) :]
    return sum(last) / len(last) if last else None


def final_success(run: RunData) -> Row | None:
    """Held-out success at the last evaluation, with its interval and its value before the first step."""
    rows = [row for row in run.evals if is_number(row.get("eval/success"))]
    if not rows:
        return None
    first, last = rows[0], rows[-1]
    names = {"value": "eval/success", "low": "eval/success_low", "high": "eval/success_high"}
    before = first["eval/success"] if first["step"] == 0 and len(rows) > 1 else None
    found = {key: rounded(last.get(name)) for key, name in names.items()}
    return {"step": last["step"], "before": rounded(before), **found}


def _verdict(summary: Row, run: RunData, onset: Onset | None) -> str:
    if run.config.get("stage") == "preference":
        parts = [_pairs(run), _ending(summary, run)]
    elif run.config.get("stage") == "imitation":
        played = "" if summary["final"] is None else _held_out(summary["final"])
        parts = [_loss(run), played, _ending(summary, run)]
    else:
        parts = [_held_out(summary["final"]), _training(summary), _health(run, onset), _ending(summary, run)]
    return " ".join(part for part in parts if part)


def _held_out(final: Row | None) -> str:
    if final is None:
        return "No held-out task was played."
    interval = ""
    if final["low"] is not None and final["high"] is not None:
        interval = f" (95 % interval {_short(final['low'])} to {_short(final['high'])})"
    before = "" if final["before"] is None else f", {_short(final['before'])} before training"
    return f"Final success {_short(final['value'])}{interval} on held-out tasks at step {final['step']}{before}."


def _pairs(run: RunData) -> str:
    """What a run on preference files has learnt."""
    rows = [row for row in run.evals if is_number(row.get("eval/pairs_accuracy"))]
    if not rows:
        return f"{counted(len(run.metrics), 'step')} on pairs; none were held out."
    last, margin = rows[-1], rows[-1].get("eval/pairs_margin")
    further = f", margin {_short(margin)}" if is_number(margin) else ""
    return f"Accuracy {_short(last['eval/pairs_accuracy'])}{further} on held-out pairs at step {last['step']}."


def _loss(run: RunData) -> str:
    """What a run on demonstrations has learnt."""
    rows = [row for row in run.evals if is_number(row.get("eval/nll"))]
    if not rows:
        return f"{counted(len(run.metrics), 'step')} of imitation; no demonstration was held out."
    first, last = rows[0], rows[-1]
    before = f", {_short(first['eval/nll'])} before" if first["step"] == 0 and first is not last else ""
    return f"Loss {_short(last['eval/nll'])} per token on held-out demonstrations at step {last['step']}{before}."


def _training(summary: Row) -> str:
    if summary["training"] is None:
        return "No step was recorded."
    return (
        f"Training success {_short(summary['training'])} at the end of {counted(summary['steps'], 'step')}, "
        f"{_short(summary['best'])} at its best."
    )


def _short(value: float) -> str:
    """Three digits, rounded like the page: 0.3125 is 0.313 there and here."""
    return f"{_THREE_DIGITS.create_decimal(Decimal(value)).normalize():f}"


def _health(run: RunData, onset: Onset | None) -> str:
    if failure := _failure(run):
        return f"It failed at step {failure['step']}: {failure.get('text', '')}."
    if onset is None:
        return "No guard incident, and training success did not fall to half of its best."
    if onset.source == "change":
        return f"The run went wrong: {onset.signal} moved first, at step {onset.step}."
    return f"{counted(len(run.incidents), 'guard incident')}, the first at step {onset.step}: {onset.signal}."


def _failure(run: RunData) -> Row | None:
    """The event that ended the run, if its environment did not work."""
    return run.events[-1] if run.events and run.events[-1].get("kind") == "failed" else None


def _ending(summary: Row, run: RunData) -> str:
    ends = [event for event in run.events if event.get("kind") in ("finished", "stopped")]
    if ends and ends[-1]["kind"] == "stopped":
        return f"It was stopped at step {ends[-1]['step']}."
    if not ends and summary["asked"] and summary["steps"] < summary["asked"]:
        return f"It has not finished: {summary['asked']} steps were asked for."
    return ""


def _tone(summary: Row, run: RunData, onset: Onset | None) -> str:
    if _failure(run):
        return "bad"
    if onset is None and _got_worse(summary["final"]):
        return "watch"
    if onset is None:
        return "good" if run.metrics else "unknown"
    return "watch" if onset.source == "guard" and _only_warned(run) else "bad"


def _got_worse(final: Row | None) -> bool:
    return final is not None and final["before"] is not None and final["value"] < final["before"]


def _only_warned(run: RunData) -> bool:
    return all(incident.get("action", "none") in ("none", "skip") for incident in run.incidents)


def _planned(run: RunData) -> int | None:
    section = run.config.get("train")
    steps = section.get("steps") if isinstance(section, dict) else None
    return steps if isinstance(steps, int) else None
