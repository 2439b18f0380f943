"""The guard: decides what to do about what the signals detect.

The loop asks `allows` before every optimiser step and calls `judge` once per step. After a verdict of "restore" it
loads the last good state and tells the guard which step that was (`restored`). The guard itself is never rewound: what
it has learned (restores used up, a smaller learning rate) must outlive the state it sends the run back to.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from turnwise.guard.bounds import BOUNDS, bounds_with, find_crossings
from turnwise.guard.definition import without_own_losses
from turnwise.guard.robust import Sighting, beyond_bound
from turnwise.guard.signals import FIRST_REFUSED, REFUSED, SIGNALS
from turnwise.recipe.schema import GuardChoice, Mode

Action = Literal["none", "skip", "shrink", "restore", "stop"]

STRENGTH: dict[Action, int] = {"none": 0, "skip": 1, "shrink": 2, "restore": 3, "stop": 4}
USUAL: tuple[Action, Action] = ("shrink", "restore")
"""The actions for a mild and for a severe finding."""
POLICY: dict[str, tuple[Action, Action]] = {
    "non-finite": ("skip", "restore"),
    "zero-variance": ("none", "none"),  # neither an older state nor smaller steps give a task a reward
    "faults": ("stop", "stop"),  # the environment is broken, not the policy: nothing to undo, resume when it is fixed
}
"""The signals with other actions."""
HISTORY = 64
"""Steps the guard remembers."""
QUIET = 5
"""Steps a signal must be silent before it is a new incident: a bad stretch is one line, not many."""
SMALLEST = 0.01
"""Mild signals shrink the learning rate no further than this: below it a run stands still and looks healthy."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One thing that went wrong: what was seen, with numbers, and what was done."""

    step: int
    signal: str
    mode: Mode
    action: Action
    text: str
    evidence: dict[str, float]
    change: str = ""
    """The one setting that was changed."""

    def as_row(self) -> dict[str, Any]:
        """The incident as a row of events.jsonl."""
        return {"kind": "guard", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the loop must do now."""

    incidents: tuple[Incident, ...] = ()
    action: Literal["none", "shrink", "restore", "stop"] = "none"
    learning_rate_factor: float = 1.0
    """Factor on the scheduled learning rate from now on: the product of all shrinks of the run so far."""

    @property
    def blames_env(self) -> bool:
        """Whether the run was stopped because of its environment: the policy is sound and stays as it is."""
        return any(incident.signal == "faults" and incident.action == "stop" for incident in self.incidents)


class Guard:
    """Watches a run, decides what to do when it goes wrong, and remembers what was done."""

    def __init__(self, settings: GuardChoice) -> None:
        _check_names(settings)
        self.settings, self._bounds = settings, bounds_with(settings.bounds)
        self.learning_rate_factor = 1.0
        self._rows: list[dict[str, float]] = []
        self._refused: list[tuple[int, int]] = []
        """Step and update of non-finite gradients, until the step is judged."""
        self._broken = ""
        self._seen: dict[str, tuple[int, int]] = {}
        """Per signal: the last step it was seen, and the strongest action it asked for in that stretch."""
        self._danger: int | None = None
        """The last step of a severe finding."""
        self._restores = 0
        self.stopped = ""
        """Why it stopped the run; empty while the run continues."""

    def allows(self, *, step: int, update: int, gradient_norm: float, loss: float) -> bool:
        """Whether this optimiser step may be taken; False: skip it, its numbers are not finite."""
        if math.isfinite(gradient_norm) and math.isfinite(loss):
            return True
        self._refused.append((step, update))
        return self._mode("non-finite") != "act"

    def broken(self, *, step: int, text: str) -> None:
        """Non-finite values occurred outside a gradient: the next verdict will be restore."""
        self._broken = self._broken or f"{text} at step {step}"

    def judge(self, step: int, metrics: Mapping[str, float]) -> Verdict:
        """What the metrics of a step mean for the run."""
        row = {**metrics, **self._refusals(step), "step": step}
        found = self._find(row)
        self._rows = [*self._rows, {name: value for name, value in row.items() if _is_finite(value)}][-HISTORY:]
        self._refused, self._broken = [], ""
        if any(finding.severe for finding in found.values()):
            self._danger = step
        incidents = [self._incident(step, signal, finding) for signal, finding in found.items()]
        return self._decide([incident for incident in incidents if self._is_new(incident)])

    def restored(self, step: int) -> None:
        """The run is back at this step: forget what came after it, and let every signal fire again."""
        self._rows = [row for row in self._rows if row["step"] <= step]
        self._seen.clear()
        self._danger = self._danger if self._danger is not None and self._danger <= step else None

    def healthy_since(self, step: int) -> bool:
        """Whether nothing severe was seen at this step or after it."""
        return self._danger is None or self._danger < step

    @property
    def state(self) -> str:
        """The guard's state in a word or two, for the screen."""
        if self.stopped:
            return "stopped"
        now = self._rows[-1]["step"] if self._rows else 0
        recent = [signal for signal, (step, _) in self._seen.items() if now - step <= QUIET]
        if recent:
            return "saw " + ", ".join(recent)
        return f"restored {self._restores} of {self.settings.restores}" if self._restores else "healthy"

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed guard needs to give the same verdicts, as plain JSON."""
        return {
            "rows": [dict(row) for row in self._rows],
            "refused": [list(entry) for entry in self._refused],
            "broken": self._broken,
            "seen": {signal: list(entry) for signal, entry in self._seen.items()},
            "danger": self._danger,
            "restores": self._restores,
            "stopped": self.stopped,
            "learning_rate_factor": self.learning_rate_factor,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue as the guard that wrote this state."""
        self._rows = [dict(row) for row in state["rows"]]
        self._refused = [(step, update) for step, update in state["refused"]]
        self._broken = state["broken"]
        self._seen = {signal: (step, strength) for signal, (step, strength) in state["seen"].items()}
        self._danger, self._restores, self.stopped = state["danger"], state["restores"], state["stopped"]
        self.learning_rate_factor = state["learning_rate_factor"]

    def _mode(self, signal: str) -> Mode:
        return self.settings.signals.get(signal, self.settings.mode)

    def _refusals(self, step: int) -> dict[str, float]:
        updates = [update for at, update in self._refused if at == step]
        return {REFUSED: len(updates), FIRST_REFUSED: min(updates)} if updates else {}

    def _find(self, row: Mapping[str, float]) -> dict[str, Sighting]:
        *rows, row = without_own_losses([*self._rows, row])
        found = {signal: see(rows, row) for signal, see in SIGNALS.items()}
        if self._broken:
            found["non-finite"] = Sighting(text=self._broken, evidence={}, severe=True)
        for crossing in find_crossings(rows, row, self._bounds):
            known = found.get(crossing.bound.signal)
            if known is None or (crossing.bound.severe and not known.severe):
                found[crossing.bound.signal] = beyond_bound(crossing)
        return {signal: finding for signal, finding in found.items() if finding and self._mode(signal) != "off"}

    def _incident(self, step: int, signal: str, finding: Sighting) -> Incident:
        mode = self._mode(signal)
        action: Action = self._action(signal, finding) if mode == "act" else "none"
        return Incident(
            step=step, signal=signal, mode=mode, action=action, text=finding.text, evidence=finding.evidence
        )

    def _action(self, signal: str, finding: Sighting) -> Action:
        mild, severe = POLICY.get(signal, USUAL)
        action = severe if finding.severe else mild
        if action == "restore" and self._restores >= self.settings.restores:
            return "stop"
        if action == "shrink" and self.learning_rate_factor * self.settings.shrink < SMALLEST:
            return "none"
        return action

    def _is_new(self, incident: Incident) -> bool:
        """Whether the signal was quiet before, or asks for more than it did in this stretch."""
        last, strongest = self._seen.get(incident.signal, (incident.step, -1))
        if incident.step - last > QUIET:
            strongest = -1
        strength = STRENGTH[incident.action]
        self._seen[incident.signal] = (incident.step, max(strength, strongest))
        return strength > strongest

    def _decide(self, incidents: list[Incident]) -> Verdict:
        """One action per step: the strongest requested, taken by the first incident that requests it."""
        leader = max(incidents, key=lambda incident: STRENGTH[incident.action], default=None)
        if leader is None or leader.action in ("none", "skip"):
            return Verdict(incidents=tuple(incidents), learning_rate_factor=self.learning_rate_factor)
        change = self._carry_out(leader)
        told = [replace(each, change=change) if each is leader else _as_evidence(each) for each in incidents]
        return Verdict(incidents=tuple(told), action=leader.action, learning_rate_factor=self.learning_rate_factor)

    def _carry_out(self, incident: Incident) -> str:
        if incident.action == "stop":
            self.stopped = f"{incident.signal} at step {incident.step}: {incident.text}"
            return ""
        self._restores += incident.action == "restore"
        self.learning_rate_factor *= self.settings.shrink
        return f"learning rate × {self.settings.shrink:g}"


def _as_evidence(incident: Incident) -> Incident:
    """An incident besides the one acted on; a skipped update stays skipped."""
    return incident if incident.action == "skip" else replace(incident, action="none")


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _check_names(settings: GuardChoice) -> None:
    known = list(dict.fromkeys([*SIGNALS, *(bound.signal for bound in BOUNDS.values())]))
    for name in settings.signals:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            fix = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
            raise ValueError(f"guard.signals: there is no signal {name!r}; {fix}")
