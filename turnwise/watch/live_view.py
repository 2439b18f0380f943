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
from turnwise.report.comparison_chapter import comparison_chapter
from turnwise.report.differences import flatten, group_labels, short_labels
from turnwise.report.episodes import Sample, read_episodes
from turnwise.runs.reading import RunData, read_mapping
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
_COMPARISON = "comparison.json"
_MARKS = ("meta.json", "metrics.jsonl")
"""A folder that has one of these is a run."""


class LiveView:
    """Follows the runs in some folders: `view.look()` now and then, `view.changes(tags)` for every browser."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [root.absolute() for root in roots]
        self._folders: dict[Path, LiveFolder] = {}
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._scanned = -SCAN_SECONDS
        self._parts: dict[str, dict[str, PagePart]] = {ALL: {}}
        self._latest: dict[str, tuple[str, str]] = {}
        """The newest message by the tags of those whom it is for: many browsers have the same."""
        self._episodes = OrderedDict[tuple[Any, ...], str]()
        self._comparison_seen: Any = ()
        self._left_out = 0
        self._described: list[Any] = []
        """What the newest description was made from."""

    def look(self) -> bool:
        """Read what is new; whether anything is."""
        with self._lock:
            found = self._scan()
            gained = [_look_at(folder) for folder in self._folders.values()]  # all of them
            if not found and not any(gained):
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
        try:
            seen = (data.path / "rollouts" / f"{kind}_{step:06d}.jsonl.zst").stat()
        except OSError:
            return None
        name = (key, kind, step, seen.st_mtime_ns, seen.st_size)
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

    def _scan(self) -> bool:
        """Look for run folders that came or went; whether there are others than before."""
        now = time.monotonic()
        if now - self._scanned < SCAN_SECONDS:
            return False
        self._scanned = now
        found = {path: name for root in self._roots for path, name in _find_runs(root)}
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
        compared = [signature(root / _COMPARISON) for root in self._roots]
        changed = list(before) != list(self._folders) or compared != self._comparison_seen
        self._comparison_seen = compared
        return changed or any(self._folders[path] is not folder for path, folder in before.items())

    def _describe(self, found: bool) -> None:
        """What all runs together say, if there are other runs or settings than before."""
        owned = [(folder, run) for folder in self._folders.values() for run in folder.runs]
        made_from = [(run, folder.problems) for folder, run in owned]
        if made_from == self._described and not found:
            return
        self._described = made_from
        data = [run.data for _, run in owned]
        labels, flat = group_labels(data), [flatten(each.config) if each.config else {} for each in data]
        for (folder, run), label, short, config in zip(owned, labels, short_labels(labels), flat, strict=True):
            run.parts["about"] = whole({**folder.about(run), "group": label, "legend": short, "config": config})
        shared = {
            "order": [run.key for _, run in owned],
            "comparison": self._compare(),
            "left_out": self._left_out,
            "roots": [str(root) for root in self._roots],
        }
        self._parts = {ALL: {"shared": whole(shared)}, **{run.key: run.parts for _, run in owned}}

    def _compare(self) -> dict[str, Any] | None:
        """The chapter of a study that has concluded."""
        for root in self._roots:
            if (root / _COMPARISON).is_file() and (content := read_mapping(root / _COMPARISON, json.loads, [])):
                try:
                    return comparison_chapter(content)
                except (KeyError, TypeError, ValueError, AttributeError):  # not the file of a comparison
                    continue
        return None


def _look_at(folder: LiveFolder) -> bool:
    """Read what is new in a folder. One that is damaged in a way that nobody thought of must not hide the others."""
    try:
        return folder.look()
    except Exception as error:  # the edge: anything may be in a folder
        problems = [f"The folder could not be read ({type(error).__name__}: {str(error)[:200]})."]
        changed, folder.problems = folder.problems != problems, problems
        return changed


def _find_runs(root: Path) -> Iterator[tuple[Path, str]]:
    """Run folders in and below a folder, with their names on the page; a run's own folders are not looked into."""
    if _is_run(root):
        yield root, root.name
        return
    level, seen = [root], 0
    for _ in range(_DEEPEST):
        below: list[Path] = []
        for folder in level:
            for child in _folders_in(folder):
                seen += 1
                if seen > _MOST_FOLDERS:
                    return
                if _is_run(child):
                    yield child, str(child.relative_to(root))
                else:
                    below.append(child)
        level = below


def _folders_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if not name.startswith(".")]


def _is_run(folder: Path) -> bool:
    return any(os.path.isfile(folder / name) for name in _MARKS)


def _started(folder: Path) -> int:
    return max((found[1] for name in _MARKS if (found := signature(folder / name))), default=0)
