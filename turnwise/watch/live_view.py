"""All runs that a page shows: which there are, and what a browser lacks of them."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from turnwise.report.columns import MOST_POINTS
from turnwise.report.differences import flatten, group_labels, short_labels
from turnwise.report.episodes import Sample, read_episodes
from turnwise.report.panels import describe_panels
from turnwise.runs.reading import RunData
from turnwise.watch.live_findings import COMPARISON, VERDICT, Conclusions, SavedEvaluations
from turnwise.watch.live_parts import NOTHING, PagePart, read_tags, whole, write_tags
from turnwise.watch.live_run import LiveFolder, LiveRun, signature

ALL = "all"
"""Under this key go the parts that belong to no single run."""
MOST_RUNS = 300
"""Of more runs, those that were started last are shown."""
MOST_RUNS_IN_FULL = 8
"""With more runs than this, only the named metrics are shown, in fewer points."""
FEW_POINTS = 128
SCAN_SECONDS = 2.0
"""Between two looks for new run folders."""
_DEEPEST = 5
_MOST_FOLDERS = 20_000
_CACHED = 16
_EPISODES = Sample(episodes=12, megabytes=6.0)
_OF_RUNS = ("meta.json", "metrics.jsonl")
"""A folder that has one of these is a run."""
_MARKS = (*_OF_RUNS, COMPARISON, VERDICT)
"""One that has another of these is a study's."""


class LiveView:
    """Follows the runs in some folders: `view.look()` now and then, `view.changes(tags)` for every browser.

    `evals` are files of saved evaluations; those that runs have in their folders join.
    """

    def __init__(self, roots: Sequence[Path], *, evals: Sequence[Path] = ()) -> None:
        self._roots = [root.absolute() for root in roots]
        self._folders: dict[Path, LiveFolder] = {}
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._scanned = -SCAN_SECONDS
        self._parts: dict[str, dict[str, PagePart]] = {ALL: {}}
        self._latest: dict[str, tuple[str, str]] = {}
        """The newest message by the tags of those whom it is for: many browsers have the same."""
        self._episodes = OrderedDict[tuple[Any, ...], str]()
        self._conclusions, self._evaluations = Conclusions(), SavedEvaluations(evals)
        self._studies: dict[Path, str] = {}
        """The folders of studies that have concluded, with their names on the page."""
        self._left_out = 0
        self._described: list[Any] | None = None
        """What the newest description was made from; None before the first."""

    def look(self, *, everywhere: bool = False) -> bool:
        """Read what is new; whether anything is. Folders that came or went are looked for now and then, or now."""
        with self._lock:
            found = self._scan(now=everywhere)
            gained = [_look_at(folder) for folder in self._folders.values()]  # all of them
            if not found and not any(gained) and self._described is not None:
                return False
            self._describe(found)
            self._latest.clear()
            return True

    def changes(self, line: str) -> tuple[str, str] | None:
        """The new tags of a browser that has these, and what it lacks as JSON; None if it lacks nothing."""
        with self._lock:
            if line in self._latest:
                return self._latest[line]
            tags = {run: {name: part.tag for name, part in parts.items()} for run, parts in self._parts.items()}
            new, known = write_tags(tags), read_tags(line)
            if new == line:
                return None
            lacking = {
                run: {
                    name: part.since(tag)
                    for name, part in parts.items()
                    if (tag := known.get(run, {}).get(name, NOTHING)) != part.tag
                }
                for run, parts in self._parts.items()
            }
            if len(self._latest) >= _CACHED:
                self._latest.clear()
            content = {"now": time.time(), "parts": {run: parts for run, parts in lacking.items() if parts}}
            self._latest[line] = new, json.dumps(content, allow_nan=False, separators=(",", ":"))
            return self._latest[line]

    def episodes(self, key: str, kind: str, step: int) -> str | None:
        """Episodes of a recorded step as JSON; None if there is no such run or file."""
        with self._lock:
            run = next((run for folder in self._folders.values() for run in folder.runs if run.key == key), None)
        if run is None or kind not in ("step", "eval"):
            return None
        data = RunData(path=run.data.path, config={}, meta={}, metrics=[], turns=[], events=[], evals=[], history=[])
        seen, learnt = (signature(data.path / "rollouts" / f"{each}_{step:06d}.jsonl.zst") for each in (kind, "tokens"))
        if seen is None:
            return None
        name = (key, kind, step, seen, learnt)
        with self._reading:  # one at a time: an episode may be large
            if name not in self._episodes:
                content = read_episodes(data, [(kind, step)], _EPISODES, budget=_EPISODES.megabytes * 1e6)
                self._episodes[name] = json.dumps({**content, "problems": data.problems}, allow_nan=False)
            self._episodes.move_to_end(name)
            while len(self._episodes) > _CACHED:
                self._episodes.popitem(last=False)
            return self._episodes[name]

    @property
    def runs(self) -> list[LiveRun]:
        """What the page shows, in order."""
        return [run for folder in self._folders.values() for run in folder.runs]

    def _scan(self, *, now: bool) -> bool:
        """Look for folders of runs and studies that came or went; whether there are others than before."""
        time_now = time.monotonic()
        if not now and time_now - self._scanned < SCAN_SECONDS:
            return False
        self._scanned = time_now
        found: dict[Path, str] = {}
        self._studies = {}
        for root in self._roots:
            _find(root, runs=found, studies=self._studies)
        self._left_out = max(0, len(found) - MOST_RUNS)
        if self._left_out:
            newest = set(sorted(found, key=_started)[-MOST_RUNS:])
            found = {path: name for path, name in found.items() if path in newest}
        full = len(found) <= MOST_RUNS_IN_FULL
        before = self._folders
        self._folders = {
            path: before[path]
            if path in before and before[path].full == full
            else LiveFolder(path, name=name, most=MOST_POINTS if full else FEW_POINTS, full=full)
            for path, name in found.items()
        }
        concluded, evaluated = self._conclusions.look(self._studies), self._evaluations.look(self._folders)
        changed = list(before) != list(self._folders) or concluded or evaluated
        return changed or any(self._folders[path] is not folder for path, folder in before.items())

    def _describe(self, found: bool) -> None:
        """What all runs together say, if there are other runs or settings than before."""
        owned = [(folder, run) for folder in self._folders.values() for run in folder.runs]
        made_from = [(run, folder.problems, run.part_metrics) for folder, run in owned]
        if made_from == self._described and not found:
            return
        self._described = made_from
        data = [run.data for _, run in owned]
        labels, flat = group_labels(data), [flatten(each.config) if each.config else {} for each in data]
        for (folder, run), label, short, config in zip(owned, labels, short_labels(labels), flat, strict=True):
            run.parts["about"] = whole({**folder.about(run), "group": label, "legend": short, "config": config})
        shared = {
            "order": [run.key for _, run in owned],
            "panels": describe_panels({name for _, run in owned for name in run.part_metrics}),
            "studies": list(self._concluded(owned)),
            "evaluations": self._evaluations.chapter,
            "left_out": self._left_out,
            "roots": [str(root) for root in self._roots],
        }
        self._parts = {ALL: {"shared": whole(shared)}, **{run.key: run.parts for _, run in owned}}

    def _concluded(self, owned: Sequence[tuple[LiveFolder, LiveRun]]) -> Iterator[dict[str, Any]]:
        """What studies found, with the runs in their folders."""
        for folder, chapters in self._conclusions.chapters.items():
            inside = [run.key for each, run in owned if each.path.is_relative_to(folder)]
            yield from ({"name": self._studies[folder], "runs": inside, **chapter} for chapter in chapters)


def _look_at(folder: LiveFolder) -> bool:
    """Read what is new in a folder. One that is damaged in a way that nobody thought of must not hide the others."""
    try:
        return folder.look()
    except Exception as error:  # the edge: anything may be in a folder
        problems = [f"The folder could not be read ({type(error).__name__}: {str(error)[:200]})."]
        changed, folder.problems = folder.problems != problems, problems
        return changed


def _find(root: Path, *, runs: dict[Path, str], studies: dict[Path, str]) -> None:
    """Add the folders of runs in and below a folder, and of studies that have concluded, with their names on the page.

    A run's own folders are not looked into.
    """
    level, seen = [root], 0
    for _ in range(_DEEPEST + 1):
        below: list[Path] = []
        for folder in level:
            seen += 1
            if seen > _MOST_FOLDERS:
                return
            marks, inside = _look_into(folder)
            name = root.name if folder == root else str(folder.relative_to(root))
            if not marks.isdisjoint(_OF_RUNS):
                runs[folder] = name
                continue
            if marks:
                studies[folder] = name
            below += inside
        level = below


def _look_into(folder: Path) -> tuple[set[str], list[Path]]:
    """Which marks a folder has, and the folders in it."""
    try:
        with os.scandir(folder) as found:
            entries = list(found)
        marks = {entry.name for entry in entries if entry.name in _MARKS and entry.is_file()}
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return set(), []
    return marks, [folder / name for name in sorted(names) if not name.startswith(".")]


def _started(folder: Path) -> int:
    return max((found[1] for name in _OF_RUNS if (found := signature(folder / name))), default=0)
