"""Words around numbers, and values as the command line reads them."""

from __future__ import annotations

import json
from typing import Any

import yaml

_READABLE = 200


def counted(count: int, noun: str) -> str:
    """`1 episode`, `2 episodes`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def written(value: Any) -> str:
    """A value behind `key=` in a command: `csv,logs`, `[1, 2]`.

    Quotes mark a text that would be read as something else: `"true"`.
    """
    return value if isinstance(value, str) and _stays_text(value) else json.dumps(value, default=str)


def _stays_text(text: str) -> bool:
    if len(text) > _READABLE:
        return False
    for read in (json.loads, yaml.safe_load):  # in the order in which the command line tries them
        try:
            if read(text) != text:
                return False
        except (ValueError, yaml.YAMLError):
            continue
    return True
