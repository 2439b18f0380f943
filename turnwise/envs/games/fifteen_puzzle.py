"""The fifteen puzzle and its other sizes: slide tiles into the gap until they stand in order."""

from __future__ import annotations

import random

from turnwise.envs.games.game import DIRECTIONS, Game, Move, direction, grid

_OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}


class FifteenPuzzle:
    """A `size` x `size` board, scrambled by `scramble` random moves.

    The way back is kept as a stack: a move along it shortens it, any other move adds its opposite. So the expert solves
    the puzzle from any position without a search.
    """

    def __init__(self, *, size: int, scramble: int) -> None:
        if size < 3 or scramble < 1:
            raise ValueError(f"size {size}, scramble {scramble}: choose size >= 3 and scramble >= 1")
        self.size = size
        self.scramble = scramble
        self.solved = [*range(1, size * size), 0]

    def deal(self, rng: random.Random) -> str:
        """Walk away from the solved board, never straight back."""
        self.tiles = self.solved
        while self.tiles == self.solved:  # a long walk on a small board may return home
            self.tiles, self.way_back = list(self.solved), list[str]()
            while len(self.way_back) < self.scramble:
                onward = [move for move in self._legal() if [move] != self.way_back[-1:]]
                self._slide(rng.choice(onward))
        return (
            f"Order the tiles 1 to {self.size**2 - 1} row by row, gap (_) last. up, down, left, right slides a tile in "
            f"that direction into the gap. Answer like this: \\boxed{{up}}\n{self.state_key()}"
        )

    def parse(self, text: str) -> str | None:
        """One of the four directions."""
        return direction(text)

    def play(self, action: str) -> Move:
        """Slide one tile."""
        if action not in self._legal():
            return Move(text=f"No tile can slide {action}.\n{self.state_key()}", valid=False)
        self._slide(action)
        if self.tiles == self.solved:
            return Move(text=f"{self.state_key()}\nSolved!", won=True)
        return Move(text=self.state_key())

    def state_key(self) -> str:
        """The board, one row a line."""
        return grid([str(tile or "_") for tile in self.tiles], self.size)

    def progress(self) -> float:
        """The share of tiles in place; the gap is not a tile."""
        pairs = zip(self.tiles, self.solved, strict=True)
        return sum(tile == home for tile, home in pairs if home) / (self.size**2 - 1)

    def random_action(self, rng: random.Random) -> str:
        """A legal move."""
        return rng.choice(self._legal())

    def oracle(self) -> str:
        """One move back along the recorded way."""
        return self.way_back[-1]

    def _legal(self) -> list[str]:
        return [move for move in DIRECTIONS if self._tile_to_slide(move) is not None]

    def _tile_to_slide(self, move: str) -> int | None:
        row, column = divmod(self.tiles.index(0), self.size)
        row, column = row - DIRECTIONS[move][0], column - DIRECTIONS[move][1]
        inside = 0 <= row < self.size and 0 <= column < self.size
        return row * self.size + column if inside else None

    def _slide(self, move: str) -> None:
        gap, tile = self.tiles.index(0), self._tile_to_slide(move)
        assert tile is not None
        self.tiles[gap], self.tiles[tile] = self.tiles[tile], 0
        if self.way_back[-1:] == [move]:
            self.way_back.pop()
        else:
            self.way_back.append(_OPPOSITE[move])


def fifteen_puzzle(*, size: int, scramble: int, max_turns: int, dense: bool = False, split: str = "train") -> Game:
    """Order a `size` x `size` board that is at most `scramble` moves from solved."""
    return Game(FifteenPuzzle(size=size, scramble=scramble), max_turns=max_turns, dense=dense, split=split)
