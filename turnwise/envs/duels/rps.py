"""Rock, paper, scissors: both choose at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from turnwise.envs.duels.duel import Duel

_MOVES = ("rock", "paper", "scissors")
"""Each beats the one before it."""
Choices = tuple[str, ...]
"""All choices so far: those of a round are neighbours, the first seat's before the second's."""


class RockPaperScissors:
    """`rounds` rounds, each worth the same. The second seat acts without seeing what the first has chosen."""

    value = 0.0
    intro = (
        "This is rock, paper, scissors; both players choose at the same time. "
        "Answer \\boxed{rock}, \\boxed{paper} or \\boxed{scissors}."
    )

    def __init__(self, *, rounds: int) -> None:
        if rounds < 1:
            raise ValueError(f"rounds is {rounds}; play at least one")
        self._rounds = rounds

    def deals(self) -> list[tuple[Choices, float]]:
        """Nothing is dealt."""
        return [((), 1.0)]

    def mover(self, state: Choices) -> int | None:
        """Both seats, in every round."""
        return None if len(state) == 2 * self._rounds else len(state) % 2

    def moves(self, state: Choices) -> tuple[str, ...]:
        """All three."""
        return _MOVES

    def play(self, state: Choices, move: str) -> Choices:
        """Add the choice."""
        return (*state, move)

    def sees(self, state: Choices, seat: int) -> str:
        """The last whole round; of this one nothing."""
        whole = len(state) - len(state) % 2
        if not whole:
            return "Choose."
        return f"Last round: {state[whole - 2 + seat]} against {state[whole - 1 - seat]}."

    def payoff(self, state: Choices) -> float:
        """Rounds won less rounds lost, as a share."""
        rounds = zip(state[::2], state[1::2], strict=True)
        return sum(_compare(first, second) for first, second in rounds) / self._rounds

    def ending(self, state: Choices) -> str:
        """The last round."""
        return f"{state[-2]} against {state[-1]}; the first player's total is {self.payoff(state):+g}."

    def solution(self, state: Choices) -> Sequence[float]:
        """All equally often."""
        return [1 / 3] * 3


def _compare(first: str, second: str) -> int:
    return (0, 1, -1)[(_MOVES.index(first) - _MOVES.index(second)) % 3]


def rock_paper_scissors(
    *,
    rounds: int = 1,
    rotate: bool = False,
    expert: Literal["optimal", "random"] = "optimal",
    split: str = "train",
) -> Duel:
    """Rock, paper, scissors over some rounds."""
    return Duel(RockPaperScissors(rounds=rounds), rotate=rotate, expert=expert, split=split)
