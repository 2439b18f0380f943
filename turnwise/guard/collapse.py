"""Whether a finished run has collapsed, by its held-out evaluations (`definition.COLLAPSE`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.guard.definition import LASTING, is_invalid, is_lost


@dataclass(frozen=True, kw_only=True)
class Collapse:
    """Where it began, and what was seen: `Collapse(step=40, reason="success 0.10 after a best of 0.82")`."""

    step: int
    reason: str


def find_collapse(
    evaluations: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]] = ()
) -> Collapse | None:
    """The first collapse in the rows of `evals.jsonl` and `events.jsonl`, None if there is none."""
    found = [_first_lasting(_lost(evaluations)), _first_lasting(_invalid(evaluations)), _stopped(events)]
    return min((collapse for collapse in found if collapse), key=lambda collapse: collapse.step, default=None)


def _lost(evaluations: Sequence[Mapping[str, Any]]) -> list[Collapse | None]:
    """For each evaluation what is wrong with its success, if anything."""
    verdicts: list[Collapse | None] = []
    best = 0.0
    for row in evaluations:
        success = row.get("eval/success")
        if success is not None:
            best = max(best, success)
            reason = f"success {success:.2f} after a best of {best:.2f}"
            verdicts.append(Collapse(step=row["step"], reason=reason) if is_lost(success, best) else None)
    return verdicts


def _invalid(evaluations: Sequence[Mapping[str, Any]]) -> list[Collapse | None]:
    shares = [(row["step"], share) for row in evaluations if (share := row.get("eval/valid")) is not None]
    verdicts: list[Collapse | None] = []
    best = 0.0
    for step, share in shares:
        best = max(best, share)
        reason = f"{share:.0%} of turns are valid"
        verdicts.append(Collapse(step=step, reason=reason) if is_invalid(share, best) else None)
    return verdicts


def _first_lasting(verdicts: list[Collapse | None]) -> Collapse | None:
    """The first bad evaluation that was followed by more: for long enough, or until the end."""
    start = 0
    for place, verdict in enumerate(verdicts):
        if verdict is None:
            start = place + 1
        elif place + 1 - start == LASTING:
            return verdicts[start]
    return verdicts[start] if start < len(verdicts) else None


def _stopped(events: Sequence[Mapping[str, Any]]) -> Collapse | None:
    for row in events:
        if row.get("kind") == "guard" and row.get("action") == "stop":
            return Collapse(step=row["step"], reason=f"the guard stopped it: {row.get('text', '')}")
    return None
