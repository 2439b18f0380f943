"""A run folder that is followed while it is written: its journals become the parts of the page."""

from __future__ import annotations

import json
import re
import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from turnwise.guard.bounds import BOUNDS
from turnwise.guard.onset import SIGNALS
from turnwise.report.columns import Columns
from turnwise.report.panels import add_reading, curves_of, has_own_panel, heat_columns, heat_of, is_part
from turnwise.report.run_parts import evaluated, facts, happenings, imitation, plays, standing, without_play
from turnwise.runs.reading import Row, RunData, read_mapping
from turnwise.runs.rows import is_number, row_of
from turnwise.runs.tail import Gain, JournalTail
from turnwise.watch.live_parts import PagePart, growing, whole

JOURNALS = ("history", "metrics", "turns", "events", "evals")
"""The history comes first: who resumes a run says so before anything is rewound."""
_ENDS = ("finished", "stopped", "interrupted", "failed")
"""Kinds of events after which nothing follows."""
_REMEMBERED = frozenset(
    (*SIGNALS, *BOUNDS, "step", "rollout/success", "rollout/zero_sum", "rollout/tasks", "rollout/episodes", "time/step")
)
"""What is kept of every step, to find where a run started to go wrong; the rest is kept in columns."""
_SHARE = 0.05
"""Of a core, for what must be computed again from all steps."""
_RECENT = 20
"""Steps over which speed is measured."""


class LiveRun:
    """One line of the page: a run folder, or one of several policies that learn in it."""

    def __init__(self, folder: LiveFolder, data: RunData, *, most: int, full: bool) -> None:
        self.data, self._folder, self._full = data, folder, full
        self.key = sha256(f"{data.path}\n{data.policy}".encode("utf-8", "backslashreplace")).hexdigest()[:10]
        self.columns, self.heat = Columns[str](most=most), heat_columns(most=most)
        self._steps = {"metrics": array("L"), "turns": array("L")}
        """For each row of these journals, how many steps there are up to it."""
        self._plays = plays(data)
        self._stands = Paced(lambda: standing(self.data))
        self.parts: dict[str, PagePart] = {}

    def add(self, journal: str, row: Row) -> None:
        """Take in a row of one of the folder's journals."""
        policy = self.data.policy
        own = row.get("policy", policy) == policy
        if journal == "turns":
            if own:
                add_reading(self.heat, row)
            self._steps[journal].append(self.heat.count)
        elif journal == "metrics":
            self._add_metrics(row_of(row, policy) if policy else row)
            self._steps[journal].append(self.columns.count)
        elif journal == "evals":
            self.data.evals.append(row_of(row, policy) if policy else row)
        elif own:
            rows = self.data.events if journal == "events" else self.data.history
            rows.append({name: value for name, value in row.items() if name not in ("traceback", "recipe")})

    def _add_metrics(self, row: Row) -> None:
        row = row if self._plays else without_play(row)
        shown = row if self._full else {name: value for name, value in row.items() if has_own_panel(name)}
        if self.columns.add(row["step"], shown.items()):
            # Names are taken from here: those of the row would be kept once for every step.
            self.data.metrics.append({name: row[name] for name in _REMEMBERED if name in row})

    @property
    def part_metrics(self) -> list[str]:
        """The metrics of the named parts of its reward."""
        return sorted(filter(is_part, self.columns.keys))

    def refresh(self, changed: set[str]) -> bool:
        """Bring the parts up to date after these journals have changed; whether a part did."""
        parts = self.parts
        if "metrics" in changed:
            parts["curves"] = self._growing("metrics", self.columns, lambda since: _curves(self.columns, since))
        if "turns" in changed:
            parts["heat"] = self._growing("turns", self.heat, lambda since: heat_of(self.heat, since=since))
        if "evals" in changed:
            parts["evaluations"] = whole(evaluated(self.data))
        if changed & {"events", "history"}:
            parts["events"] = whole(happenings(self.data, newest=True))
        stands = self._stands.refresh(due=bool(changed & {"metrics", "events", "evals"}))
        if stands or changed:
            parts["state"] = whole({**self._stands.value, **self._liveness()})
        return stands or bool(changed)

    def _growing(self, journal: str, columns: Columns[Any], show: Callable[[int], dict[str, Any]]) -> PagePart:
        steps = self._steps[journal]
        return growing(self._folder.tails[journal], lambda rows: steps[rows - 1] if rows else 0, columns, show)

    def _liveness(self) -> dict[str, Any]:
        last = self.data.events[-1] if self.data.events else {}
        resumed = self.data.history[-1].get("time", "") if self.data.history else ""
        over = str(last.get("kind")) in _ENDS and str(last.get("time", "")) >= str(resumed)
        seconds = [row["time/step"] for row in self.data.metrics[-_RECENT:] if "time/step" in row]
        known = [each for each in seconds if is_number(each)]
        return {
            "status": str(last["kind"]) if over else "",
            "changed": self._folder.changed,
            "pace": sum(known) / len(known) if known else None,
        }


class LiveFolder:
    """A run folder: `folder.look()` reads what is new and says whether anything is."""

    def __init__(self, path: Path, *, name: str, most: int, full: bool) -> None:
        self.path, self.name, self._most, self.full = path, name, most, full
        self.tails = {journal: JournalTail(path / f"{journal}.jsonl") for journal in JOURNALS}
        self._imitated = {name: JournalTail(path / "sft" / f"{name}.jsonl") for name in ("metrics", "evals")}
        self._stage = RunData(
            path=path / "sft", config={}, meta={}, metrics=[], turns=[], events=[], evals=[], history=[]
        )
        self._settings: tuple[Any, ...] = ()
        self._rollouts = Paced(lambda: _recorded(self.path / "rollouts"))
        self._rollouts_seen: Any = None
        self.problems: list[str] = []
        self._unread: list[str] = []
        self.runs: list[LiveRun] = []

    @property
    def changed(self) -> float:
        """When a journal was last written to."""
        return max(tail.changed for tail in (*self.tails.values(), *self._imitated.values()))

    def look(self) -> bool:
        """Read what is new in every file; whether the page changes."""
        changed = self._read()
        while not all(tail.is_complete for tail in self.tails.values()):
            changed |= self._read()
        self.problems = self._find_problems()
        others = self._look_at_others(needed=changed == set(JOURNALS))
        refreshed = [run.refresh(changed) for run in self.runs]
        return any(refreshed) or others

    def _read(self) -> set[str]:
        """Take in a piece of each journal. After a rewind, or when somebody resumed the run, all is read again."""
        settings = tuple(signature(self.path / name) for name in ("config.yaml", "meta.json"))
        gains = self._gains()
        rewound = any(gain.anew for gain in gains.values()) or (bool(self._settings) and "history" in gains)
        changed = set[str](gains)
        if rewound or settings != self._settings:
            if self._settings:
                for tail in self.tails.values():
                    tail.restart()
                gains = self._gains()
            self._settings, changed = settings, set[str](JOURNALS)
            self._begin()
        for journal, gain in gains.items():
            for row in gain.rows:
                for run in self.runs:
                    run.add(journal, row)
        return changed

    def _gains(self) -> dict[str, Gain]:
        gains = {journal: tail.look() for journal, tail in self.tails.items()}
        return {journal: gain for journal, gain in gains.items() if gain is not None}

    def _begin(self) -> None:
        problems: list[str] = []
        data = RunData(
            path=self.path,
            config=read_mapping(self.path / "config.yaml", yaml.safe_load, problems),
            meta=read_mapping(self.path / "meta.json", json.loads, problems),
            metrics=[],
            turns=[],
            events=[],
            evals=[],
            history=[],
        )
        self._unread = problems
        own = [replace(each, metrics=[], turns=[], events=[], evals=[], history=[]) for each in data.by_policy()]
        self.runs = [LiveRun(self, part, most=self._most, full=self.full) for part in own]

    def _look_at_others(self, *, needed: bool) -> bool:
        """The imitation stage, and which steps have episodes."""
        gains = {name: tail.look() for name, tail in self._imitated.items()}
        if any(gain is not None and gain.anew for gain in gains.values()):
            self._stage.metrics.clear()
            self._stage.evals.clear()
            for tail in self._imitated.values():
                tail.restart()
            gains = {name: tail.look() for name, tail in self._imitated.items()}
        for name, gain in gains.items():
            rows = self._stage.metrics if name == "metrics" else self._stage.evals
            rows.extend(gain.rows if gain is not None else ())
        seen = signature(self.path / "rollouts")
        fresh = self._rollouts.refresh(due=seen != self._rollouts_seen)
        self._rollouts_seen = seen
        if needed or any(gains.values()):
            shown = whole({"imitation": imitation(self._stage) if self._stage.metrics else None})
            for run in self.runs:
                run.parts["imitation"] = shown
        if needed or fresh:
            for run in self.runs:
                run.parts["recorded"] = whole({"recorded": self._rollouts.value})
        return fresh or any(gains.values())

    def about(self, run: LiveRun) -> dict[str, Any]:
        """What the page says of the run as a whole."""
        policy = run.data.policy
        return {
            **facts(run.data),
            "name": f"{self.name} · {policy}" if policy else self.name,
            "problems": self.problems,
        }

    def _find_problems(self) -> list[str]:
        lines = {f"{name}.jsonl": tail.damaged for name, tail in self.tails.items()}
        return self._unread + [f"{file} has {count} lines that are no rows." for file, count in lines.items() if count]


class Paced:
    """A value that is computed again when it is due, but takes only a small share of a core."""

    def __init__(self, compute: Callable[[], dict[str, Any]]) -> None:
        self._compute, self._next, self._due = compute, 0.0, True
        self.value: dict[str, Any] = {}

    def refresh(self, *, due: bool) -> bool:
        """Compute it again if it is due and the last time is long enough ago; whether it was."""
        self._due = self._due or due
        started = time.monotonic()
        if not self._due or started < self._next:
            return False
        self.value, self._due = self._compute(), False
        ended = time.monotonic()
        self._next = ended + (ended - started) / _SHARE
        return True


def _curves(columns: Columns[str], since: int) -> dict[str, Any]:
    return curves_of(columns, (name for name in columns.keys if name != "step"), since=since)


def signature(path: Path) -> tuple[int, int, int] | None:
    """What changes with a file or folder: its number, time and size; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _recorded(folder: Path) -> dict[str, Any]:
    """Steps that have episodes, and the learner's numbers of them, by kind of file: ranges [first, last, stride]."""
    steps: dict[str, list[int]] = {"step": [], "eval": [], "tokens": []}
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        names = []
    for name in names:
        if found := re.fullmatch(r"(step|eval|tokens)_(\d{6,12})\.jsonl\.zst", name):
            steps[found[1]].append(int(found[2]))
    return {kind: _ranges(sorted(found)) for kind, found in steps.items()}


def _ranges(steps: list[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and (ranges[-1][0] == ranges[-1][1] or step - ranges[-1][1] == ranges[-1][2]):
            ranges[-1][1:] = [step, step - ranges[-1][1]]
        else:
            ranges.append([step, step, 1])
    return ranges
