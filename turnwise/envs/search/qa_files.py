"""Questions and corpora from files, in the formats of published question-answering sets.

| set | question file | passages |
|---|---|---|
| HotpotQA, 2Wiki | `question`, `answer`, `supporting_facts` | `context`: `[title, [sentence, ...]]` |
| MuSiQue | `question`, `answer`, `answer_aliases` | `paragraphs`: `title`, `paragraph_text`, `is_supporting` |
| NQ, TriviaQA, PopQA | `question` and `answer`, `answers` or `golden_answers` | |
| MedMCQA | `question`, `opa` ... `opd`, `cop` | `exp` |
| PubMedQA | `QUESTION`, `final_decision`, keyed by id | `CONTEXTS` |

A corpus is a list of objects with `title` and `text`, `paragraph_text` or `contents`, or one object `{title: text}`.
Files named `.json` contain one JSON value; all others contain one JSON value per line.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.envs.search.retriever import Document
from turnwise.envs.search.task import multiple_choice

_CHOICES = ("opa", "opb", "opc", "opd")
_QUESTIONS = ("question", "QUESTION")
_ANSWERS = ("golden_answers", "answers", "answer", "final_decision")
_TEXTS = ("text", "paragraph_text", "contents")

Passage = tuple[str, str]
"""Title and text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One question as read from a file."""

    id: str
    text: str
    answers: tuple[str, ...]
    titles: tuple[str, ...]
    """Titles of the passages with the answer; empty if not known."""
    passages: tuple[Passage, ...]
    """Passages that came with the question."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One entry of a file: its place, its key and its content."""

    where: str
    key: str
    value: Any

    def field(self, names: Sequence[str]) -> Any:
        """The first of these fields that exists; ValueError if none does."""
        if not isinstance(self.value, dict):
            raise self.wrong(f"expected an object with a field {names[0]!r}, found {type(self.value).__name__}")
        for name in names:
            if self.value.get(name) is not None:
                return self.value[name]
        raise self.wrong(f"the field {names[0]!r} is missing (also accepted: {', '.join(names[1:])})")

    def wrong(self, complaint: str) -> ValueError:
        """The error that says what is wrong with this entry."""
        return ValueError(f"{self.where}: {complaint}")


def read_questions(path: Path) -> list[Question]:
    """All questions of a file in any of the shapes above."""
    records = _read(path)
    # MedMCQA counts its choices from 1 in its own files and from 0 in copies; a 0 anywhere tells which.
    first_choice = 0 if any(isinstance(r.value, dict) and r.value.get("cop") == 0 for r in records) else 1
    return [_question(record, first_choice) for record in records]


def read_corpus(path: Path) -> list[Document]:
    """All passages of a corpus file as documents."""
    return number([_passage(record) for record in _read(path)])


def number(passages: Sequence[Passage]) -> list[Document]:
    """Passages as numbered documents, duplicates dropped."""
    return [Document(number=n, title=title, text=text) for n, (title, text) in enumerate(dict.fromkeys(passages))]


def _read(path: Path) -> list[Record]:
    if not path.is_file():
        raise ValueError(f"no such file: {path}; check the path (relative paths start from {Path.cwd()})")
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    records = list(_whole(path, text) if path.suffix == ".json" else _lines(path, text))
    if not records:
        raise ValueError(f"{path} is empty; it must have at least one entry")
    return records


def _whole(path: Path, text: str) -> Iterator[Record]:
    value = _parse(str(path), text or "[]", hint="; if it has one value per line, name it .jsonl")
    if isinstance(value, dict):
        for key, entry in value.items():
            yield Record(where=f"{path}, key {key!r}", key=key, value=entry)
    elif isinstance(value, list):
        for place, entry in enumerate(value, start=1):
            yield Record(where=f"{path}, entry {place}", key=str(place), value=entry)
    else:
        raise ValueError(f"{path} must contain a list or an object, found {type(value).__name__}")


def _lines(path: Path, text: str) -> Iterator[Record]:
    # Split at newlines only: splitlines() would also cut inside strings, at Unicode line separators.
    for place, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {place}"
            yield Record(where=where, key=str(place), value=_parse(where, line, hint=""))


def _parse(where: str, text: str, *, hint: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not valid JSON ({error}){hint}") from error


def _question(record: Record, first_choice: int) -> Question:
    text, value = record.field(_QUESTIONS), record.value
    if not isinstance(text, str) or not text.strip():
        raise record.wrong("the field 'question' must be a non-empty text")
    if "cop" in value:
        text, answers = _choice(record, text, first_choice)
    else:
        answers = _answers(record)
    passages, supporting = _own_passages(record)
    name = value.get("id", value.get("_id", record.key))
    return Question(id=str(name), text=text, answers=answers, titles=supporting, passages=passages)


def _answers(record: Record) -> tuple[str, ...]:
    found = record.field(_ANSWERS)
    answers = [found] if isinstance(found, str) else found
    answers = [*answers, *(record.value.get("answer_aliases") or [])] if isinstance(answers, list) else answers
    if not isinstance(answers, list) or not answers or not all(isinstance(a, str) and a.strip() for a in answers):
        raise record.wrong("the field 'answer' must be a text or a non-empty list of texts")
    return tuple(dict.fromkeys(answers))


def _choice(record: Record, question: str, first_choice: int) -> tuple[str, tuple[str, ...]]:
    options = [str(record.field((name,))) for name in _CHOICES]
    right = record.value["cop"]
    if not isinstance(right, int) or not 0 <= right - first_choice < len(options):
        raise record.wrong(f"the field 'cop' must be a number from {first_choice} to {first_choice + 3}")
    return multiple_choice(question, options, right - first_choice)


def _own_passages(record: Record) -> tuple[tuple[Passage, ...], tuple[str, ...]]:
    """The passages inside a question's record, and the titles of those that support the answer."""
    value = record.value
    try:
        passages = [(title, "".join(sentences)) for title, sentences in _pairs(value.get("context"), "sentences")]
        supporting = [title for title, _ in _pairs(value.get("supporting_facts"), "sent_id")]
        for paragraph in value.get("paragraphs") or ():
            passages.append((paragraph["title"], paragraph["paragraph_text"]))
            supporting += [paragraph["title"]] if paragraph.get("is_supporting") else []
    except (TypeError, ValueError, KeyError) as error:
        raise record.wrong(f"'context', 'supporting_facts' or 'paragraphs' has an unknown shape ({error!r})") from error
    passages += [("", text) for text in value.get("CONTEXTS") or ()]
    passages += [("", value["exp"])] if value.get("exp") else []
    if not all(isinstance(part, str) for part in [*supporting, *itertools.chain(*passages)]):
        raise record.wrong("titles and passages must be texts")
    return tuple(passages), tuple(dict.fromkeys(supporting))


def _pairs(value: Any, second: str) -> list[tuple[Any, Any]]:
    """Pairs stored as rows or as two columns."""
    columns = isinstance(value, dict)
    rows = zip(value["title"], value[second], strict=True) if columns else (value or ())
    return [(first, last) for first, last in rows]


def _passage(record: Record) -> Passage:
    value = record.value
    if isinstance(value, str):
        return record.key, value
    if isinstance(value, list) and all(isinstance(sentence, str) for sentence in value):
        return record.key, "".join(value)
    text = record.field(_TEXTS)
    title = record.value.get("title") or ""
    if not isinstance(text, str) or not isinstance(title, str):
        raise record.wrong("the fields 'title' and 'text' must be texts")
    return title, text
