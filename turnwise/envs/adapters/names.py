"""Names in text: one clear message for an unknown one, and the action that a turn of text names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence


def check_name(kind: str, name: str, known: Iterable[str]) -> None:
    """ValueError with the closest known names unless `name` is one of them."""
    names = list(known)
    if name not in names:
        close = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names[:3]
        raise ValueError(f"unknown {kind} {name!r}: did you mean {' or '.join(close)}?")


def last_named(text: str, names: Sequence[str]) -> str | None:
    """The name that occurs last in the text as whole words, whatever its case."""
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    found = re.findall(rf"\b(?:{pattern})\b", text.lower())
    return found[-1] if found else None
