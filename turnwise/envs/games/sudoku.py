"""Sudoku with exactly one solution; wrong digits are rejected, so a puzzle never becomes unsolvable."""

from __future__ import annotations

import random
from itertools import islice

from turnwise.envs.games.game import Game, Move, draw_until, grid, integers
from turnwise.envs.games.sudoku_boards import completions, full_board


class Sudoku:
    """A board of `block` x `block` blocks with `clues` digits given; the expert writes the digits of the solution."""

    def __init__(self, *, block: int, clues: int) -> None:
        self.block = block
        self.size = block * block
        if block not in (2, 3) or not self.size <= clues < self.size**2:
            raise ValueError(
                f"block {block}, clues {clues}: choose block 2 or 3 and size**2 > clues >= size = block**2"
            )
        self.clues = clues

    def deal(self, rng: random.Random) -> str:
        """Draw a full board, and clues from it until they have one solution."""
        self.solution = full_board(self.block, rng)
        draw_until(lambda: self._draw_clues(rng), "give more clues")
        return (
            f"Sudoku: fill each . so that every row, column and {self.block} x {self.block} block holds 1 to "
            f"{self.size}. Answer with row, column, digit: \\boxed{{1 2 {self.size}}}\n{self.state_key()}"
        )

    def parse(self, text: str) -> tuple[int, ...] | None:
        """Row, column and digit."""
        return integers(text, 3)

    def play(self, action: tuple[int, int, int]) -> Move:
        """Write a digit if it is right."""
        row, column, digit = action
        if not all(1 <= number <= self.size for number in action):
            return Move(text=f"Rows, columns and digits go from 1 to {self.size}.\n{self.state_key()}", valid=False)
        cell = (row - 1) * self.size + column - 1
        if self.board[cell]:
            return Move(text=f"That cell is filled.\n{self.state_key()}", valid=False)
        if digit != self.solution[cell]:
            return Move(text=f"{digit} is wrong there.\n{self.state_key()}")
        self.board[cell] = digit
        if self.board == self.solution:
            return Move(text=f"{self.state_key()}\nSolved!", won=True)
        return Move(text=self.state_key())

    def state_key(self) -> str:
        """The board, one row a line."""
        return grid([str(digit or ".") for digit in self.board], self.size)

    def progress(self) -> float:
        """The share of filled cells; each right digit adds 1 / empty cells to the dense reward."""
        return 1 - self.board.count(0) / len(self.board)

    def random_action(self, rng: random.Random) -> str:
        """Any digit in an empty cell."""
        cell = rng.choice([cell for cell, digit in enumerate(self.board) if not digit])
        return self._action(cell, rng.randint(1, self.size))

    def oracle(self) -> str:
        """The first empty cell's digit: the solution is unique, so it follows from what is visible."""
        cell = self.board.index(0)
        return self._action(cell, self.solution[cell])

    def _draw_clues(self, rng: random.Random) -> bool:
        given = set(rng.sample(range(len(self.solution)), self.clues))
        self.board = [digit if cell in given else 0 for cell, digit in enumerate(self.solution)]
        return len(list(islice(completions(self.board, self.block), 2))) == 1

    def _action(self, cell: int, digit: int) -> str:
        return f"{cell // self.size + 1} {cell % self.size + 1} {digit}"


def sudoku(*, block: int, clues: int, max_turns: int, dense: bool = False, split: str = "train") -> Game:
    """Complete a board of `block` x `block` blocks with `clues` digits given."""
    return Game(Sudoku(block=block, clues=clues), max_turns=max_turns, dense=dense, split=split)
