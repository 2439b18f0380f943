"""Sudoku boards as flat lists of digits, 0 for an empty cell: drawing full ones and completing others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache


def full_board(block: int, rng: random.Random) -> list[int]:
    """A random full board: a cyclic pattern with rows and columns shuffled inside and among blocks, digits renamed."""
    digits = rng.sample(range(1, block * block + 1), block * block)
    rows, columns = (
        [band * block + line for band in rng.sample(range(block), block) for line in rng.sample(range(block), block)]
        for _ in range(2)
    )
    return [digits[(row % block * block + row // block + column) % len(digits)] for row in rows for column in columns]


def completions(board: list[int], block: int) -> Iterator[list[int]]:
    """All ways to fill a board, the most constrained cell first."""
    empty = [cell for cell, digit in enumerate(board) if not digit]
    if not empty:
        yield board
        return
    options = {cell: open_digits(board, cell, block) for cell in empty}
    cell = min(empty, key=lambda cell: len(options[cell]))
    for digit in sorted(options[cell]):
        yield from completions([*board[:cell], digit, *board[cell + 1 :]], block)


def open_digits(board: list[int], cell: int, block: int) -> set[int]:
    """Digits that no cell of the same row, column or block has."""
    return set(range(1, block * block + 1)).difference(board[peer] for peer in peers(cell, block))


@cache
def peers(cell: int, block: int) -> tuple[int, ...]:
    """The other cells of a cell's row, column and block."""
    size = block * block

    def units(at: int) -> tuple[int, int, tuple[int, int]]:
        row, column = divmod(at, size)
        return row, column, (row // block, column // block)

    mine = units(cell)
    return tuple(
        at for at in range(size**2) if at != cell and any(a == b for a, b in zip(units(at), mine, strict=True))
    )
