"""The words of requests: seven ways to say each part, in the singular and the plural."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Role(StrEnum):
    """The terminals of the grammar."""

    VERB = "VP"
    """`A precedes B`"""
    EVENT = "VP0"
    """`A happens`: no order."""
    PREPOSITION = "P"
    """`A happens before B`"""
    CONJUNCTION = "SC"
    """`A happens before B occurs`"""


Terminal = tuple[Role, bool]
"""A part, and whether the subject comes earlier (always true for EVENT)."""
Spelling = tuple[str, str]
"""Singular and plural."""


def _same(*words: str) -> tuple[Spelling, ...]:
    return tuple((word, word) for word in words)


def _verbs(*words: str) -> tuple[Spelling, ...]:
    """`precede` is also `precedes`; `are followed by` is also `is followed by`."""
    return tuple((_singular(word), word) for word in words)


def _singular(word: str) -> str:
    first, *rest = word.split()
    return " ".join(["is" if first == "are" else "goes" if first == "go" else f"{first}s", *rest])


SPELLINGS: Mapping[Terminal, tuple[Spelling, ...]] = {
    (Role.VERB, True): _verbs(
        *("precede", "come before", "are followed by", "go before"),
        *("come ahead of", "are succeeded by", "come earlier than"),
    ),
    (Role.VERB, False): _verbs(
        *("follow", "come after", "are preceded by", "go after"),
        *("succeed", "wait for", "come later than"),
    ),
    (Role.EVENT, True): _verbs(
        *("happen", "occur", "are executed", "take place"),
        *("are carried out", "are performed", "are completed"),
    ),
    (Role.PREPOSITION, True): _same(
        *("before", "prior to", "ahead of", "earlier than", "in advance of", "sooner than", "some time before")
    ),
    (Role.PREPOSITION, False): _same(
        *("after", "following", "later than", "subsequent to", "in the wake of", "only after", "some time after")
    ),
    (Role.CONJUNCTION, True): _same(
        *("before", "prior to when", "ahead of when", "earlier than when"),
        *("in advance of when", "sooner than", "at some point before"),
    ),
    (Role.CONJUNCTION, False): _same(
        *("after", "once", "as soon as", "only once", "later than when", "only after", "at some point after")
    ),
}
SYNONYMS = 7
"""Ways to say each terminal."""
WHICH = "which"
JOINTS = (";", ", and", ", but", ", yet", ", while", ", whereas")
"""What joins the clauses of a sentence."""


def readings() -> dict[str, set[Terminal]]:
    """The terminals that each phrase may be."""
    found: dict[str, set[Terminal]] = {}
    for terminal, spellings in SPELLINGS.items():
        for phrase in {form for spelling in spellings for form in spelling}:
            found.setdefault(phrase, set()).add(terminal)
    return found
