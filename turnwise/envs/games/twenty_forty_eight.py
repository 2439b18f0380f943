"""2048: slide and merge tiles until one reaches the target."""

from __future__ import annotations

import random
from math import log2

from turnwise.envs.games.game import Game, Move, direction, grid
from turnwise.envs.games.twenty_forty_eight_board import Board, empty_cells, outlook, place, slide, successors


class TwentyFortyEight:
    """A 4 x 4 board on which the player must make the tile `target`; the expert looks ahead a move or two."""

    def __init__(self, *, target: int) -> None:
        if target < 8 or target & (target - 1):
            raise ValueError(f"target is {target}; choose a power of two from 8 on")
        self.target = target

    def deal(self, rng: random.Random) -> str:
        """Start with two tiles; the generator is kept, because every move adds a tile."""
        self.rng = rng
        self.board: Board = ((0,) * 4,) * 4
        self._add_tile()
        self._add_tile()
        return (
            "2048: left, right, up or down slides all tiles; equal neighbours merge into their sum; a new tile comes. "
            f"Make the tile {self.target}. Answer like this: \\boxed{{left}}\n{self.state_key()}"
        )

    def parse(self, text: str) -> str | None:
        """One of the four directions."""
        return direction(text)

    def play(self, action: str) -> Move:
        """Slide the tiles and add one."""
        board = slide(self.board, action)
        if board == self.board:
            return Move(text=f"Nothing moves {action}.\n{self.state_key()}", valid=False)
        self.board = board
        if max(map(max, board)) >= self.target:
            return Move(text=f"{self.state_key()}\nYou made {self.target}!", won=True)
        self._add_tile()
        if not successors(self.board):
            return Move(text=f"{self.state_key()}\nNo move is left. The game is lost.", lost=True)
        return Move(text=self.state_key())

    def state_key(self) -> str:
        """The board, one row a line."""
        return grid([str(tile or ".") for row in self.board for tile in row], 4)

    def progress(self) -> float:
        """Doublings from 4 to the largest tile, as a share of those to the target."""
        return max(0.0, log2(max(map(max, self.board)) / 4) / log2(self.target / 4))

    def random_action(self, rng: random.Random) -> str:
        """A move that changes the board."""
        return rng.choice(list(successors(self.board)))

    def oracle(self) -> str:
        """The move with the best outlook."""
        after = successors(self.board)
        return max(after, key=lambda move: outlook(after[move]))

    def _add_tile(self) -> None:
        tile = 2 if self.rng.random() < 0.9 else 4
        self.board = place(self.board, self.rng.choice(empty_cells(self.board)), tile)


def twenty_forty_eight(*, target: int, max_turns: int, dense: bool = False, split: str = "train") -> Game:
    """Make the tile `target` on a 4 x 4 board."""
    return Game(TwentyFortyEight(target=target), max_turns=max_turns, dense=dense, split=split)
