"""2048 boards: moves, and how promising a board is."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

from turnwise.envs.games.game import DIRECTIONS

Row = tuple[int, ...]
Board = tuple[Row, ...]
CROWDED = 4
"""With this many empty cells or fewer after a move, the expert also considers where the next tile may fall."""
LOST = -1e9


def empty_cells(board: Board) -> list[tuple[int, int]]:
    """Row and column, from 0, of the cells without a tile."""
    return [(row, column) for row in range(4) for column in range(4) if not board[row][column]]


def place(board: Board, cell: tuple[int, int], tile: int) -> Board:
    """The board with one more tile."""
    rows = [list(row) for row in board]
    rows[cell[0]][cell[1]] = tile
    return tuple(map(tuple, rows))


@cache
def merge(row: Row) -> Row:
    """A row slid to the left; each tile merges once: `merge((2, 2, 4, 0))` is `(4, 4, 0, 0)`."""
    merged: list[int] = []
    fresh = False
    for tile in filter(None, row):
        fresh = not fresh and merged[-1:] == [tile]
        merged[len(merged) - fresh :] = [tile * 2 if fresh else tile]
    return (*merged, *[0] * (len(row) - len(merged)))


def slide(board: Board, move: str) -> Board:
    """The board after a move, before a new tile appears."""
    if move in ("up", "down"):
        return tuple(zip(*slide(tuple(zip(*board, strict=True)), "left" if move == "up" else "right"), strict=True))
    if move == "left":
        return tuple(map(merge, board))
    return tuple(merge(row[::-1])[::-1] for row in board)


def successors(board: Board) -> dict[str, Board]:
    """The boards after each move that changes something."""
    after = {move: slide(board, move) for move in DIRECTIONS}
    return {move: result for move, result in after.items() if result != board}


def outlook(board: Board) -> float:
    """The value of a board; if it is crowded, of the best answer to the worst place for the next tile."""
    empty = empty_cells(board)
    if len(empty) > CROWDED:
        return value(board)
    return min(max(map(value, successors(place(board, cell, 2)).values()), default=LOST) for cell in empty)


def value(board: Board) -> float:
    """The sum over all rows and columns."""
    return sum(map(line_value, board)) + sum(map(line_value, zip(*board, strict=True)))


@cache
def line_value(line: Row) -> float:
    """Empty cells and equal neighbours are good; rows that go up and down are bad, especially with large tiles."""
    sizes = [tile.bit_length() ** 2 for tile in line]
    steps = [after - before for before, after in pairwise(sizes)]
    detour = min(sum(step for step in steps if step > 0), -sum(step for step in steps if step < 0))
    merges = sum(before == after != 0 for before, after in pairwise(line))
    return line.count(0) + merges - 0.1 * detour
