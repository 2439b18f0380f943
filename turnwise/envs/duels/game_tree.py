"""A game of two seats as a tree: what an environment plays, and what is solved and measured exactly.

Chance acts only in the deal. What one wins the other loses. Two moves are simultaneous where the second mover does not
see the first: `sees` leaves it out, so both decide in the same position whatever the other chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

State = TypeVar("State")
SEATS = 2


class GameTree(Protocol[State]):
    """The rules of a game as functions of a state, which never changes: `tree.play(state, "bet")` is another."""

    @property
    def intro(self) -> str:
        """The rules in one line, which each seat reads once."""
        ...

    @property
    def value(self) -> float:
        """What the first seat earns in the mean if both play their best."""
        ...

    def deals(self) -> Sequence[tuple[State, float]]:
        """Every start, with its probability."""
        ...

    def mover(self, state: State) -> int | None:
        """The seat that acts, 0 or 1; None: the game is over."""
        ...

    def moves(self, state: State) -> Sequence[str]:
        """The legal moves of the seat that acts."""
        ...

    def play(self, state: State, move: str) -> State:
        """The state after a legal move."""
        ...

    def sees(self, state: State, seat: int) -> str:
        """What a seat may know on its turn, besides what it has read and done before."""
        ...

    def payoff(self, state: State) -> float:
        """What the first seat earns at the end, from -1 to 1; the second earns the opposite."""
        ...

    def ending(self, state: State) -> str:
        """How the game ended, for both to read."""
        ...

    def solution(self, state: State) -> Sequence[float]:
        """The probability of each legal move in an optimal strategy of the seat that acts."""
        ...


class Rotated(Generic[State]):
    """A game in which chance also decides who sits where, so that each seat plays both parts."""

    def __init__(self, tree: GameTree[State]) -> None:
        self._tree, self.intro, self.value = tree, tree.intro, 0.0

    def deals(self) -> list[tuple[tuple[State, int], float]]:
        """Every start of the game, with either seat first."""
        return [((state, first), chance / SEATS) for state, chance in self._tree.deals() for first in range(SEATS)]

    def mover(self, state: tuple[State, int]) -> int | None:
        """The seat whose part it is."""
        part = self._tree.mover(state[0])
        return None if part is None else part ^ state[1]

    def moves(self, state: tuple[State, int]) -> Sequence[str]:
        """Those of the game."""
        return self._tree.moves(state[0])

    def play(self, state: tuple[State, int], move: str) -> tuple[State, int]:
        """Nobody changes seats during a game."""
        return self._tree.play(state[0], move), state[1]

    def sees(self, state: tuple[State, int], seat: int) -> str:
        """What the seat's part may know."""
        return self._tree.sees(state[0], seat ^ state[1])

    def payoff(self, state: tuple[State, int]) -> float:
        """The first seat's, whichever part it had."""
        return self._tree.payoff(state[0]) * (-1 if state[1] else 1)

    def ending(self, state: tuple[State, int]) -> str:
        """That of the game."""
        return self._tree.ending(state[0])

    def solution(self, state: tuple[State, int]) -> Sequence[float]:
        """That of the game."""
        return self._tree.solution(state[0])


def reading(tree: GameTree[State], state: State, seat: int, *, first: bool) -> str:
    """The observation of a seat on its turn: on its first one the rules come before."""
    seen = tree.sees(state, seat)
    return f"{tree.intro}\n{seen}" if first else seen
