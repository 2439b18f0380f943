"""Whether something can be called with the options that a user wrote, and if not, what they may have meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any


def mistake_in_options(called: Callable[..., Any], options: Mapping[str, Any], *, handed: int = 0) -> str | None:
    """What is wrong with the options, and which there are; None if `called` can be called with them.

    It gets `handed` positional arguments before them: `unknown option 'iteration'; did you mean iterations? It takes …`
    """
    try:
        signature = inspect.signature(called)
    except ValueError:  # some functions written in C have none
        return None
    known = list(signature.parameters)[handed:]
    takes = f"takes {', '.join(known) or 'no options'}"
    try:
        signature.bind(*[None] * handed, **options)
    except TypeError as error:
        unknown = next((name for name in options if name not in known), None)
        if unknown is None:
            return f"{error}; it {takes}"
        close = get_close_matches(unknown, known, n=1)
        return f"unknown option {unknown!r}; {f'did you mean {close[0]}? It' if close else 'it'} {takes}"
    return None
