"""Minesweeper without luck: every board can be cleared by deduction from the cells open at the start."""

from __future__ import annotations

import random

from turnwise.envs.games.game import Game, Move, draw_until, grid, integers
from turnwise.envs.games.minesweeper_deduction import Cell, Fact, neighbours, safe_cells


class Minesweeper:
    """A `size` x `size` field with `mines` mines; the expert deduces from open cells and never looks at closed ones."""

    def __init__(self, *, size: int, mines: int) -> None:
        if size < 4 or not 1 <= mines <= size**2 // 4:
            raise ValueError(f"{mines} mines on {size} x {size}: choose size >= 4 and at most a quarter of it mines")
        self.size = size
        self.mine_count = mines

    def deal(self, rng: random.Random) -> str:
        """Draw fields until one needs deduction and can be cleared by it alone."""
        draw_until(lambda: self._draw(rng), "choose fewer mines")
        return (
            f"Minesweeper, {self.size} x {self.size}, {self.mine_count} mines. # is closed; a digit counts the mines "
            "in the 8 cells around it. Open all cells without a mine. Answer with row and column, from 1 at the top "
            f"left: \\boxed{{2 3}}\n{self.state_key()}"
        )

    def parse(self, text: str) -> tuple[int, ...] | None:
        """Row and column."""
        return integers(text, 2)

    def play(self, action: Cell) -> Move:
        """Open one cell and, around a zero, all its neighbours."""
        if not all(1 <= number <= self.size for number in action) or action in self.opened:
            return Move(text=f"Choose a closed cell of the field.\n{self.state_key()}", valid=False)
        if action in self.mines:
            return Move(text="That was a mine. The game is lost.", lost=True)
        self._open(action)
        if self.progress() == 1:
            return Move(text=f"{self.state_key()}\nCleared!", won=True)
        return Move(text=self.state_key())

    def state_key(self) -> str:
        """The field as the player sees it."""
        return grid([self._symbol(cell) for cell in self._cells()], self.size)

    def progress(self) -> float:
        """The share of safe cells that are open."""
        return len(self.opened) / (self.size**2 - self.mine_count)

    def random_action(self, rng: random.Random) -> str:
        """Any closed cell."""
        row, column = rng.choice([cell for cell in self._cells() if cell not in self.opened])
        return f"{row} {column}"

    def oracle(self) -> str:
        """The first cell that is certainly safe."""
        row, column = min(safe_cells(self._facts()))
        return f"{row} {column}"

    def _cells(self) -> list[Cell]:
        span = range(1, self.size + 1)
        return [(row, column) for row in span for column in span]

    def _draw(self, rng: random.Random) -> bool:
        start = rng.choice(self._cells())
        outside = [cell for cell in self._cells() if cell != start and cell not in neighbours(start, self.size)]
        self.mines = set(rng.sample(outside, self.mine_count))
        self.opened = set[Cell]()
        self._open(start)
        return self.progress() < 1 and self._can_be_deduced()

    def _symbol(self, cell: Cell) -> str:
        return str(self._count(cell)) if cell in self.opened else "#"

    def _count(self, cell: Cell) -> int:
        return len(self.mines.intersection(neighbours(cell, self.size)))

    def _open(self, cell: Cell) -> None:
        waiting = [cell]
        while waiting:
            cell = waiting.pop()
            if cell not in self.opened:
                self.opened.add(cell)
                waiting += neighbours(cell, self.size) if self._count(cell) == 0 else ()

    def _facts(self) -> set[Fact]:
        closed = {cell: frozenset(neighbours(cell, self.size)) - self.opened for cell in self.opened}
        return {(cells, self._count(cell)) for cell, cells in closed.items() if cells}

    def _can_be_deduced(self) -> bool:
        opening = set(self.opened)
        safe = safe_cells(self._facts())
        while safe:
            for cell in safe:
                self._open(cell)
            safe = safe_cells(self._facts())
        cleared, self.opened = self.progress() == 1, opening
        return cleared


def minesweeper(*, size: int, mines: int, max_turns: int, dense: bool = False, split: str = "train") -> Game:
    """Clear a `size` x `size` field of `mines` mines."""
    return Game(Minesweeper(size=size, mines=mines), max_turns=max_turns, dense=dense, split=split)
