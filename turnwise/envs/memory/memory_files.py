"""Dialogues and questions from files, in the formats of published sets.

| set | what `path` names |
|---|---|
| LoCoMo | a JSON list: `conversation` with `session_1`, `session_1_date_time`, …, and `qa` |
| LongMemEval | JSON or JSONL: `haystack_sessions` and `haystack_dates`, or `sessions` with `date` and `turns` |
| BFCL memory | a folder: `questions.jsonl`, `answers.jsonl`, and the sessions in `memory_<scenario>.json` |
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.envs.memory.memory_bank import LONGEST_TEXT, Bank
from turnwise.envs.memory.memory_case import Case, Said
from turnwise.envs.search.retriever import build_once
from turnwise.envs.tasks.answers import split_of
from turnwise.untrusted import parse_shallow

_KINDS = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
"""LoCoMo's categories; the fifth is adversarial and left out, as in Memory-R1."""
_FORMS = "LoCoMo, LongMemEval or a folder of BFCL's memory sessions"


@dataclass(frozen=True, kw_only=True)
class FileQuestion:
    """A question about a dialogue that was read from a file."""

    id: str
    text: str
    answers: tuple[str, ...]
    kind: str
    turns: tuple[Said, ...]
    """The dialogue; where the evidence is known, up to the last turn of it."""

    def case(self, turns: int) -> Case:
        """As a task, in which a manager handles the last `turns` turns of the dialogue."""
        bank, known = Bank(), self.turns[: max(len(self.turns) - turns, 0)]
        for number, said in enumerate(known):
            bank.add(said.text, now=number)
        left = self.turns[len(known) :]
        return Case(bank=bank, said=left, question=self.text, answers=self.answers, kind=self.kind)


@build_once
def read_questions(path: str, split: str) -> Mapping[str, FileQuestion]:
    """The questions of a split by id; ValueError with the fix if there is none, or the file has another form."""
    place = Path(path)
    if not place.exists():
        raise ValueError(f"no such file: {path}; check the path (relative paths start from {Path.cwd()})")
    try:
        found = list(_read_bfcl(place) if place.is_dir() else _read_file(place))
    except OSError as error:
        raise ValueError(f"{path} is not in the form of {_FORMS} ({error})") from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not in the form of {_FORMS} ({error!r})") from error
    chosen = {question.id: question for question in found if split_of(question.text) == split}
    if not chosen:
        raise ValueError(f"path: none of the {len(found)} questions in {path} belongs to the split {split}; add some")
    return chosen


def _read_file(path: Path) -> Iterator[FileQuestion]:
    for number, entry in enumerate(_entries(path), start=1):
        yield from _locomo(entry) if "conversation" in entry else [_longmemeval(entry, number)]


def _locomo(entry: Mapping[str, Any]) -> Iterator[FileQuestion]:
    talk, turns, places = entry["conversation"], list[Said](), dict[str, int]()
    sessions = [name for name in talk if name.startswith("session_") and name.removeprefix("session_").isdigit()]
    for name in sorted(sessions, key=lambda name: int(name.removeprefix("session_"))):
        for turn in talk[name]:
            places[turn["dia_id"]] = len(turns)
            turns.append(_said(str(talk.get(f"{name}_date_time", "")), turn["text"], turn["speaker"]))
    for number, asked in enumerate(entry["qa"], start=1):
        if asked["category"] not in _KINDS:
            continue
        end = max((places[each] for each in asked.get("evidence", ()) if each in places), default=len(turns) - 1)
        yield FileQuestion(
            id=f"{entry['sample_id']}/{number}",
            text=_text(asked["question"]),
            answers=(str(asked["answer"]),),
            kind=_KINDS[asked["category"]],
            turns=tuple(turns[: end + 1]),
        )


def _longmemeval(entry: Mapping[str, Any], number: int) -> FileQuestion:
    if "haystack_sessions" in entry:
        sessions = list(zip(entry["haystack_dates"], entry["haystack_sessions"], strict=True))
    else:
        sessions = [(session["date"], session["turns"]) for session in entry["sessions"]]
    turns = [
        (_said(date, turn["content"], turn["role"]), turn.get("has_answer")) for date, talk in sessions for turn in talk
    ]
    end = max((place for place, (_, holds) in enumerate(turns) if holds), default=len(turns) - 1)
    return FileQuestion(
        id=str(entry.get("question_id", number)),
        text=_text(entry["question"]),
        answers=(str(entry["answer"]),),
        kind=_text(entry["question_type"]),
        turns=tuple(said for said, _ in turns[: end + 1]),
    )


def _read_bfcl(folder: Path) -> Iterator[FileQuestion]:
    golds = {entry["id"]: tuple(map(str, entry["ground_truth"])) for entry in _entries(folder / "answers.jsonl")}
    dialogues: dict[str, tuple[Said, ...]] = {}
    for entry in _entries(folder / "questions.jsonl"):
        scenario = _text(entry["scenario"])
        if scenario not in dialogues:
            sessions = _entries(folder / f"memory_{Path(scenario).name}.json")
            dialogues[scenario] = tuple(
                _said(session["topic"], message["content"], message["role"])
                for session in sessions
                for turn in session["question"]
                for message in turn
            )
        asked = entry["question"][0][0]["content"]
        yield FileQuestion(
            id=entry["id"], text=_text(asked), answers=golds[entry["id"]], kind=scenario, turns=dialogues[scenario]
        )


def _said(date: str, text: str, speaker: str) -> Said:
    return Said(text=f"{_text(speaker)}: {_text(text)}"[:LONGEST_TEXT], date=_text(date))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {type(value).__name__}")
    return value


def _entries(path: Path) -> list[Any]:
    """The entries of a JSON list, or of a file with one JSON value a line, whatever its name ends in."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    try:
        value = parse_shallow(json.loads, text)
        return value if isinstance(value, list) else [value]
    except ValueError:
        return [parse_shallow(json.loads, line) for line in text.split("\n") if line.strip()]
