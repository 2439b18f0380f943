"""What lies beside runs: the conclusions of studies, and saved evaluations; read again when their files change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.report.comparison_chapter import comparison_chapter
from turnwise.report.verdict_chapter import verdict_chapter
from turnwise.runs.disk import open_plain
from turnwise.untrusted import parse_shallow
from turnwise.watch.live_run import signature

if TYPE_CHECKING:
    from turnwise.evaluate.saved import SavedEvaluation

COMPARISON, VERDICT, _RESULTS = "comparison.json", "verdict.md", "results.json"
"""What `turnwise compare` and `turnwise reproduce` conclude with."""
MOST_STUDIES = 20
"""Of more studies, those that concluded last are shown."""
_EVALUATIONS = "evals"
"""The folder inside a run whose saved evaluations are its own."""
_NO_CONCLUSION = (OSError, LookupError, TypeError, ValueError, AttributeError)
"""What comes of a file that has the name of a conclusion and is none."""


class Conclusions:
    """What studies found: `conclusions.look(folders)` reads what is new in theirs."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[Any, ...]] = {}
        self.chapters: dict[Path, list[dict[str, Any]]] = {}
        """For each folder, its conclusions as data for the page."""

    def look(self, folders: Iterable[Path]) -> bool:
        """Whether there is another conclusion than before."""
        there = {folder: _signatures(folder) for folder in folders}
        newest = set(sorted(there, key=lambda folder: _written(there[folder]))[-MOST_STUDIES:])
        there = {folder: seen for folder, seen in there.items() if folder in newest}
        if there == self._seen:
            return False
        known, self._seen = self._seen, there
        self.chapters = {
            folder: self.chapters[folder] if known.get(folder) == seen else _read_conclusions(folder)
            for folder, seen in there.items()
        }
        return True


class SavedEvaluations:
    """Files of `turnwise eval --save`: those that are named, and those in the folders `evals` of runs."""

    def __init__(self, named: Sequence[Path]) -> None:
        self._named = [file.absolute() for file in named]
        self._seen: dict[Path, Any] = {}
        self._read: dict[Path, SavedEvaluation | str] = {}
        """What is in each file, or why nothing is."""
        self.chapter: dict[str, Any] | None = None
        """All of them as data for the page."""

    def look(self, runs: Iterable[Path]) -> bool:
        """Whether there are others than before."""
        own = (file for run in runs for file in sorted((run / _EVALUATIONS).glob("*.json")))
        there = {file: signature(file) for file in (*self._named, *own)}
        if there == self._seen and list(there) == list(self._seen):
            return False
        known, self._seen = self._seen, there
        self._read = {
            file: self._read[file] if file in known and known[file] == seen else _read_saved(file)
            for file, seen in there.items()
        }
        self.chapter = self._describe()
        return True

    def _describe(self) -> dict[str, Any] | None:
        if not self._read:
            return None
        # Most runs have none, and the page should open before all that recipes need is imported.
        from turnwise.evaluate.saved_chapter import evaluations_chapter, name_evaluations

        sound = {file: each for file, each in self._read.items() if not isinstance(each, str)}
        problems = [each for each in self._read.values() if isinstance(each, str)]
        content = evaluations_chapter(name_evaluations(sound)) if sound else {}
        return comparison_chapter({**content, "notes": [*content.get("notes", ()), *problems]})


def _signatures(folder: Path) -> tuple[Any, ...]:
    return tuple(signature(folder / name) for name in (COMPARISON, VERDICT, _RESULTS))


def _written(signatures: tuple[Any, ...]) -> int:
    """When the newest of the files was; 0 if they have just been removed."""
    return max((found[1] for found in signatures if found), default=0)


def _read_conclusions(folder: Path) -> list[dict[str, Any]]:
    found = (_conclusion(folder, title, read) for title, read in _CONCLUSIONS.items())
    return [each for each in found if each is not None]


def _conclusion(folder: Path, title: str, read: Callable[[Path], Mapping[str, Any]]) -> dict[str, Any] | None:
    try:
        return {"title": title, "chapter": comparison_chapter(read(folder))}
    except _NO_CONCLUSION:
        return None


def _read_comparison(folder: Path) -> Mapping[str, Any]:
    return parse_shallow(json.loads, _text(folder / COMPARISON))


def _read_verdict(folder: Path) -> Mapping[str, Any]:
    return verdict_chapter(_text(folder / VERDICT), parse_shallow(json.loads, _text(folder / _RESULTS)))


_CONCLUSIONS = {"Comparison": _read_comparison, "Verdict": _read_verdict}


def _text(file: Path) -> str:
    with open_plain(file) as opened:
        return opened.read().decode()


def _read_saved(file: Path) -> SavedEvaluation | str:
    from turnwise.evaluate.saved import read_evaluation

    try:
        return read_evaluation(file)
    except ValueError as error:
        return str(error)
