"""What others wrote, made safe to read and to show."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any

DEEPEST = 100
"""Levels of lists and mappings that a file of ours may have; none needs a dozen."""


def parse_shallow(parse: Callable[[str], Any], text: str) -> Any:
    """`parse(text)`; ValueError where lists and mappings lie so deep in each other that no code could follow them.

    `parse_shallow(json.loads, "[" * 100_000 + "]" * 100_000)` is refused as any text is that cannot be read.
    """
    try:
        value = parse(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level, depth = [value], 0
    while level := [inner for outer in level for inner in _inside(outer)]:
        depth += 1
        if depth > DEEPEST:
            raise ValueError(_TOO_DEEP)
    return value


def _inside(value: Any) -> list[Any]:
    return [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []


_TOO_DEEP = f"lists or mappings are nested more than {DEEPEST} levels deep; write them flatter"
_LONGEST = 10_000
"""Characters of a repr; what is longer is cut."""


def printable(text: str) -> str:
    """The text with everything escaped that could steer a terminal: `"\\x1b[2J"` becomes four visible characters.

    New lines stay, tabs and odd spaces become plain spaces, and what cannot be seen (controls, marks that change the
    direction of writing, lone surrogates) is written as an escape.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in text.replace("\r\n", "\n"))


def shown(value: Any) -> str:
    """The repr of any object without addresses, which no second run would repeat.

    One whose repr raises, or that is nested too deep for one, becomes `<Board that cannot be shown>`.
    """
    try:
        text = repr(value)
    except Exception:  # the edge: `repr` is code of others
        return f"<{type(value).__name__} that cannot be shown>"
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _shown(character: str) -> str:
    if character == "\n" or character.isprintable():
        return character
    if character == "\t":
        return "    "
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape").decode("ascii")
