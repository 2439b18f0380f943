"""Nim: take stones from one pile; whoever takes the last one wins. Solved by Bouton (1901)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from operator import xor
from typing import Literal, NamedTuple

from turnwise.envs.duels.duel import PLAYERS, Duel

_PILES = "ABCDE"


class Stones(NamedTuple):
    """The piles, and whose turn it is."""

    piles: tuple[int, ...]
    mover: int = 0


class Nim:
    """`piles` piles of 1 to `largest` stones: the first seat wins unless the exclusive or of the piles is 0."""

    intro = (
        "This is Nim. In turn, take any number of stones from one pile; whoever takes the last stone wins. "
        "\\boxed{A2} takes two stones from pile A."
    )

    def __init__(self, *, piles: int, largest: int) -> None:
        if not 1 <= piles <= len(_PILES) or not 1 <= largest <= 9:
            raise ValueError(f"piles is {piles} and largest {largest}; choose 1 to {len(_PILES)} piles of at most 9")
        self._starts = [Stones(start) for start in product(range(1, largest + 1), repeat=piles)]

    @property
    def value(self) -> float:
        """Starts that are won, less those that are lost."""
        return sum(1 if _is_won(start.piles) else -1 for start in self._starts) / len(self._starts)

    def deals(self) -> list[tuple[Stones, float]]:
        """All piles, equally likely."""
        return [(start, 1 / len(self._starts)) for start in self._starts]

    def mover(self, state: Stones) -> int | None:
        """In turn, until no stone is left."""
        return state.mover if any(state.piles) else None

    def moves(self, state: Stones) -> list[str]:
        """A pile and a number of its stones."""
        piles = zip(_PILES, state.piles, strict=False)
        return [f"{name}{taken}" for name, stones in piles for taken in range(1, stones + 1)]

    def play(self, state: Stones, move: str) -> Stones:
        """Take the stones."""
        place, taken = _PILES.index(move[0]), int(move[1:])
        piles = tuple(stones - taken * (each == place) for each, stones in enumerate(state.piles))
        return Stones(piles, 1 - state.mover)

    def sees(self, state: Stones, seat: int) -> str:
        """Everything."""
        return "Piles: " + " ".join(f"{name}={count}" for name, count in zip(_PILES, state.piles, strict=False))

    def payoff(self, state: Stones) -> float:
        """The seat that is to move at the end has lost."""
        return 1.0 if state.mover else -1.0

    def ending(self, state: Stones) -> str:
        """Who took the last stone."""
        return f"{PLAYERS[1 - state.mover]} took the last stone and wins."

    def solution(self, state: Stones) -> Sequence[float]:
        """Any move after which the exclusive or is 0; where none exists all moves are equally bad."""
        good = [not _is_won(self.play(state, move).piles) for move in self.moves(state)]
        return [each / sum(good) for each in good] if any(good) else [1 / len(good)] * len(good)


def _is_won(piles: Sequence[int]) -> bool:
    return reduce(xor, piles) != 0


def nim(
    *,
    piles: int = 2,
    largest: int = 3,
    rotate: bool = False,
    expert: Literal["optimal", "random"] = "optimal",
    split: str = "train",
) -> Duel:
    """Nim on `piles` piles of at most `largest` stones."""
    return Duel(Nim(piles=piles, largest=largest), rotate=rotate, expert=expert, split=split)
