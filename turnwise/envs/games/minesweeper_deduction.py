"""What a minesweeper player can know for sure."""

from __future__ import annotations

from functools import cache

Cell = tuple[int, int]
Fact = tuple[frozenset[Cell], int]
"""Some closed cells, and how many mines are among them."""


@cache
def neighbours(cell: Cell, size: int) -> tuple[Cell, ...]:
    """The up to eight cells around a cell."""
    rows, columns = (range(max(1, at - 1), min(size, at + 1) + 1) for at in cell)
    return tuple((row, column) for row in rows for column in columns if (row, column) != cell)


def safe_cells(facts: set[Fact]) -> set[Cell]:
    """Cells that the facts prove free of mines, by subtracting facts from facts that contain them.

    Opening more cells only sharpens facts, so a field that deduction clears stays clearable whatever the player opens.
    """
    fresh = facts
    while fresh:
        safe = {cell for cells, mines in facts if mines == 0 for cell in cells}
        if safe:
            return safe
        certain = {(frozenset([cell]), 1) for cells, mines in facts if mines == len(cells) for cell in cells}
        inside = {(big - small, more - less) for small, less in facts for big, more in facts if small < big}
        fresh = (certain | inside) - facts
        facts = facts | fresh
    return set()
