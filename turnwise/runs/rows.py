"""Rows of journals: metrics by name, as they were measured or as they were read again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

Row = Mapping[str, Any]
"""One line of a journal: what it has no data for is missing, and what was not finite is null."""


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(row: Row, name: str) -> float | None:
    """A metric of a row; None where the row has none or it is not finite."""
    value = row.get(name)
    return value if is_number(value) else None
