"""A memory bank, and the four operations by which a manager changes it. Any text is a defined result."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from turnwise.envs.memory.memory_index import MemoryIndex
from turnwise.untrusted import parse_shallow

MOST_OPERATIONS = 16
"""In one turn."""
LONGEST_TEXT = 2_000
"""Characters of a memory."""
LARGEST_BANK = 10_000_000
"""Characters of all memories."""
_LONGEST_TURN = 100_000
_ID = re.compile(r"\d{1,9}", re.ASCII)
_WORDS = re.compile(r"(ADD|UPDATE|DELETE|NOOP)\b(?:\s+(?P<id>\d{1,9})\b)?(?P<text>.*)", re.ASCII | re.DOTALL)


class Event(StrEnum):
    """What an operation does."""

    ADD = "ADD"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    NOOP = "NOOP"


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One change: `Operation(event=Event.UPDATE, id="3", text="Ann's pets: Buddy, Scout")`."""

    event: Event
    id: str = ""
    text: str = ""

    def as_json(self) -> dict[str, str]:
        """As a manager writes it, without what the event does not need."""
        said = {"event": str(self.event), "id": self.id, "text": self.text}
        return {name: value for name, value in said.items() if value}

    def as_words(self) -> str:
        """As a small model writes it: `UPDATE 3 ann pets buddy scout`."""
        return " ".join(filter(None, (self.event, self.id, self.text)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One memory. `created` and `updated` count the turns of the dialogue."""

    id: str
    text: str
    created: int
    updated: int


class MalformedTurnError(ValueError):
    """Why operations were refused; the bank is as before."""


class Bank:
    """Memories by id, with a retriever: `bank.apply(read_operations(turn), now=7)`.

    Operations of a turn are applied together or not at all. The bank gives ids to what is added.
    """

    def __init__(self, *, largest: int = LARGEST_BANK) -> None:
        self.entries: dict[str, Entry] = {}
        self.largest, self.size = largest, 0
        self._next = 1
        self._index = MemoryIndex()

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, text: str, *, now: int) -> Entry:
        """Add a memory under the next id."""
        entry = Entry(id=str(self._next), text=text, created=now, updated=now)
        self._next += 1
        self._put(entry)
        return entry

    def apply(self, operations: Sequence[Operation], *, now: int) -> None:
        """Change the bank; MalformedTurnError, and no change, if one of the operations does not fit it."""
        self._check(operations)
        for operation in operations:
            old = self.entries.get(operation.id)
            if operation.event is Event.ADD:
                self.add(operation.text, now=now)
            elif operation.event is Event.UPDATE and old is not None:
                self._put(Entry(id=old.id, text=operation.text, created=old.created, updated=now))
            elif operation.event is Event.DELETE:
                self.size -= len(self.entries.pop(operation.id).text)
                self._index.remove(operation.id)

    def search(self, query: str, k: int) -> list[Entry]:
        """The `k` memories that fit a text best, best first."""
        return [self.entries[id] for id in self._index.search(query, k)]

    def _put(self, entry: Entry) -> None:
        old = self.entries.get(entry.id)
        self.size += len(entry.text) - (len(old.text) if old is not None else 0)
        self.entries[entry.id] = entry
        self._index.put(entry.id, entry.text)

    def _check(self, operations: Sequence[Operation]) -> None:
        size, named = self.size, set[str]()
        for operation in operations:
            old = self.entries.get(operation.id)
            if operation.event is Event.ADD and old is not None:
                raise MalformedTurnError(f"there is a memory {operation.id} already; leave the id of ADD out")
            if operation.event in (Event.UPDATE, Event.DELETE):
                if old is None:
                    raise MalformedTurnError(f"{operation.event} names memory {operation.id}, which is not in the bank")
                if operation.id in named:
                    raise MalformedTurnError(f"two operations change memory {operation.id}; write one")
                named.add(operation.id)
            if operation.event is not Event.NOOP:
                size += len(operation.text) - (len(old.text) if old is not None else 0)
        if size > self.largest:
            raise MalformedTurnError(f"the bank would exceed {self.largest:,} characters; delete something first")


def read_operations(turn: str) -> list[Operation]:
    """The operations of a turn as JSON: a list, one operation, or `{"memory": […]}`. MalformedTurnError: why not.

    Each has `event`, and `id` and `text` where the event needs them; `old_memory` is allowed and ignored. What a turn
    says before its first bracket is not read.
    """
    start = min((place for place in (turn.find("["), turn.find("{")) if place >= 0), default=-1)
    if start < 0:
        raise MalformedTurnError("the turn has no JSON; write a list of operations")
    if len(turn) - start > _LONGEST_TURN:
        raise MalformedTurnError(f"the operations have more than {_LONGEST_TURN:,} characters; write less")
    try:
        value, _ = parse_shallow(json.JSONDecoder().raw_decode, turn[start:])
    except ValueError as error:
        raise MalformedTurnError(f"the operations are not JSON: {error}") from None
    value = value.get("memory", value) if isinstance(value, dict) else value
    listed = value if isinstance(value, list) else [value]
    if len(listed) > MOST_OPERATIONS:
        raise MalformedTurnError(f"there are {len(listed)} operations; write at most {MOST_OPERATIONS}")
    return [_read_one(each) for each in listed]


def read_words(turn: str) -> list[Operation]:
    """The operation of a small model's turn: `UPDATE 3 ann pets buddy scout`. MalformedTurnError: why not."""
    found = _WORDS.fullmatch(turn.strip()[:_LONGEST_TURN])
    if found is None:
        raise MalformedTurnError("a turn begins with ADD, UPDATE, DELETE or NOOP")
    said = {"event": found[1], "id": found["id"], "text": found["text"].strip()}
    return [_read_one({name: value for name, value in said.items() if value})]


def _read_one(value: Any) -> Operation:
    if not isinstance(value, Mapping):
        raise MalformedTurnError("an operation is a mapping with event, id and text")
    event, id, text = value.get("event"), value.get("id", ""), value.get("text", "")
    if event not in (*Event,):
        raise MalformedTurnError(f"the event is one of {', '.join(Event)}")
    event = Event(event)
    id = str(id) if isinstance(id, int) and not isinstance(id, bool) and 0 <= id < 10**9 else id
    if not isinstance(id, str) or not (id == "" or _ID.fullmatch(id)):
        raise MalformedTurnError("an id is a number of the list of memories")
    if not isinstance(text, str) or len(text) > LONGEST_TEXT:
        raise MalformedTurnError(f"a text is a string of at most {LONGEST_TEXT:,} characters")
    if event in (Event.UPDATE, Event.DELETE) and not id:
        raise MalformedTurnError(f"{event} needs the id of a memory")
    if event in (Event.ADD, Event.UPDATE) and not text.strip():
        raise MalformedTurnError(f"{event} needs a text")
    whole = text.encode(errors="replace").decode()  # JSON can escape half a character, which no tokenizer takes
    return Operation(event=event, id="" if event is Event.NOOP else id, text=whole.strip() if _writes(event) else "")


def _writes(event: Event) -> bool:
    return event in (Event.ADD, Event.UPDATE)
