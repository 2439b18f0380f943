"""Rows of journals: metrics by name, as measured or as read back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

Row = Mapping[str, Any]
"""One line of a journal: metrics without data are missing, and non-finite ones are null."""

AREAS = ("rollout", "source", "loss", "train", "time", "eval", "turn")
"""What the names of metrics begin with. Where several policies learn, those of one have its name in front."""

_LARGEST_BITS = 1024
"""Of an integer that a float can hold."""


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number."""
    if isinstance(value, int):
        return not isinstance(value, bool) and value.bit_length() < _LARGEST_BITS
    return isinstance(value, float) and math.isfinite(value)


def number(row: Row, name: str) -> float | None:
    """A metric of a row, or None if it is missing or not finite."""
    value = row.get(name)
    return value if is_number(value) else None


def row_of(row: Row, policy: str) -> dict[str, Any]:
    """A row as one of several policies sees it: what all share, and its own numbers without its name in front."""
    shared = {name: value for name, value in row.items() if "/" not in name or name.partition("/")[0] in AREAS}
    own = {name.removeprefix(f"{policy}/"): value for name, value in row.items() if name.startswith(f"{policy}/")}
    return {**shared, **own}
