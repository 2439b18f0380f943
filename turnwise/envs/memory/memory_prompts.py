"""What a manager and an answerer read and write: explained and with JSON, or in few words for the smallest models."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from turnwise.envs.memory.memory_bank import Entry, Operation, read_operations, read_words
from turnwise.envs.memory.memory_facts import Form
from turnwise.envs.search.protocol import defuse

_MANAGE = """You keep the memories of a long dialogue. Compare what was just said with the memories that may be \
related to it, and write a JSON list of operations:
{{"event": "ADD", "text": "..."}} for something new
{{"event": "UPDATE", "id": "...", "text": "..."}} to rewrite a memory; keep what is still true of it
{{"event": "DELETE", "id": "..."}} for a memory that is no longer true
{{"event": "NOOP"}} if nothing changes

Said on {date}: {said}

Memories:
{memories}"""
_DISTIL = """First list the memories that matter, one a line, after "Memories:". Then write the bare answer, without \
explanation, after "Answer:"."""
_DIRECT = """Write the bare answer, without explanation, after "Answer:"."""
_ASK = """Answer the question from the memories of a long dialogue. {how}

Question: {question}

Memories:
{memories}"""
_ANSWER = re.compile(r"\banswer\b[ \t]*:?", re.IGNORECASE | re.ASCII)
_LISTED = re.compile(r"\A\s*(?:memories\b[ \t]*:?|use\b)", re.IGNORECASE | re.ASCII)
LONGEST_ANSWER = 1_000
"""Characters that are read; more cannot match."""


def show_said(said: str, date: str, related: Sequence[Entry], form: Form) -> str:
    """What a manager reads."""
    if form == "words":
        return f"fact {said} : {' ; '.join(f'{entry.id} {entry.text}' for entry in related)}".rstrip()
    listed = _listed([f"{entry.id}: {entry.text}" for entry in related])
    return _MANAGE.format(date=defuse(date), said=defuse(said), memories=listed)


def read_turn(turn: str, form: Form) -> list[Operation]:
    """A manager's operations; MalformedTurnError says what is wrong."""
    return read_words(turn) if form == "words" else read_operations(turn)


def write_turn(operation: Operation, form: Form) -> str:
    """An operation as a manager writes it."""
    return operation.as_words() if form == "words" else json.dumps([operation.as_json()])


def ask(question: str, candidates: Sequence[Entry], form: Form, *, distils: bool) -> str:
    """What an answerer reads: memories in the order of their ids, which says nothing about how well they fit."""
    texts = [entry.text for entry in sorted(candidates, key=lambda entry: int(entry.id))]
    if form == "words":
        return f"{'use' if distils else 'answer'} {question} : {' ; '.join(texts)}".rstrip()
    return _ASK.format(how=_DISTIL if distils else _DIRECT, question=defuse(question), memories=_listed(texts))


def read_answer(turn: str, *, distils: bool) -> str | None:
    """The bare answer; None if the turn has none, or does not begin as it should."""
    markers = [*_ANSWER.finditer(turn[:LONGEST_ANSWER]), *_ANSWER.finditer(turn, max(len(turn) - LONGEST_ANSWER, 0))]
    if not markers:
        return None
    begins = bool(_LISTED.match(turn)) if distils else not turn[: markers[0].start()].strip()
    last = markers[-1] if distils else markers[0]
    answer = turn[last.end() :].strip()
    return answer if begins and len(answer) <= LONGEST_ANSWER else None


def write_answer(used: Sequence[str], answer: str, form: Form, *, distils: bool) -> str:
    """An answer with the memories that it rests on."""
    if form == "words":
        return f"use {' ; '.join([*used, ''])}answer {answer}" if distils else f"answer {answer}"
    listed = "\n".join(["Memories:", *(f"- {text}" for text in used), ""]) if distils else ""
    return f"{listed}Answer: {answer}"


def _listed(texts: Sequence[str]) -> str:
    return defuse("\n".join(texts)) or "none"
