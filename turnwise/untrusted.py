"""Text that models and environments wrote, made safe to show."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """The text with everything escaped that could steer a terminal: `"\\x1b[2J"` becomes four visible characters.

    New lines stay, tabs and odd spaces become plain spaces, and what cannot be seen (controls, marks that change the
    direction of writing, lone surrogates) is written as an escape.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in text.replace("\r\n", "\n"))


def _shown(character: str) -> str:
    if character == "\n" or character.isprintable():
        return character
    if character == "\t":
        return "    "
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape").decode("ascii")
