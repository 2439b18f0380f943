"""Make text and objects from others safe to read and to print."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any

DEEPEST = 100
"""Maximum nesting of lists and mappings in a file of ours; none needs a dozen."""


def parse_shallow(parse: Callable[[str], Any], text: str) -> Any:
    """`parse(text)`; ValueError if lists and mappings are nested too deep for our code.

    `parse_shallow(json.loads, "[" * 100_000 + "]" * 100_000)` is rejected like any unreadable text.
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
"""Maximum characters of a repr."""


def printable(text: str) -> str:
    """The text with everything escaped that could control a terminal: `"\\x1b[2J"` becomes four visible characters.

    New lines stay, tabs and odd spaces become plain spaces, and invisible characters (controls, marks that change the
    writing direction, lone surrogates) are escaped.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in text.replace("\r\n", "\n"))


def shown(value: Any) -> str:
    """The repr of any object, without memory addresses, which differ between runs.

    An object whose repr raises or is nested too deep becomes `<Board that cannot be shown>`.
    """
    try:
        text = repr(value)
    except Exception:  # the edge: `repr` may be a user's code
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
