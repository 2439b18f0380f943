"""Kuhn's poker: three cards, one bet, and an optimal strategy that must bluff (Kuhn 1950)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Literal, NamedTuple

from turnwise.envs.duels.duel import PLAYERS, Duel

_CARDS = "JQK"
_OPEN, _FACING = ("check", "bet"), ("fold", "call")
_BLUFF = 1 / 3
"""How often the first seat bets a jack. Any number up to a third is optimal; it then bets a king thrice as often."""


class Hands(NamedTuple):
    """The card of each seat, and the moves so far."""

    cards: tuple[str, str]
    played: tuple[str, ...] = ()


class Kuhn:
    """Both pay one chip; a bet is one more. The higher card wins the pot, and payoffs are in halves of a chip."""

    intro = (
        "This is Kuhn poker with the cards J, Q and K. Each player has one card and has paid one chip; a bet is one "
        "more. The higher card wins unless somebody folds. Answer \\boxed{check} or \\boxed{bet}, or after a bet "
        "\\boxed{fold} or \\boxed{call}."
    )
    value = -1 / 36
    """A loss of 1/18 of a chip; two chips are a payoff of 1."""

    def deals(self) -> list[tuple[Hands, float]]:
        """Two different cards."""
        cards = [(first, second) for first, second in permutations(_CARDS, 2)]
        return [(Hands(pair), 1 / len(cards)) for pair in cards]

    def mover(self, state: Hands) -> int | None:
        """Two checks, a fold or a call end the game."""
        over = state.played == ("check", "check") or (bool(state.played) and state.played[-1] in _FACING)
        return None if over else len(state.played) % 2

    def moves(self, state: Hands) -> tuple[str, ...]:
        """After a bet fold or call, else check or bet."""
        return _FACING if "bet" in state.played else _OPEN

    def play(self, state: Hands, move: str) -> Hands:
        """Add the move."""
        return Hands(state.cards, (*state.played, move))

    def sees(self, state: Hands, seat: int) -> str:
        """The seat's own card, and every move."""
        return f"You hold {state.cards[seat]}. Play so far: {', '.join(state.played) or 'nothing'}."

    def payoff(self, state: Hands) -> float:
        """Half a point for a chip."""
        last = state.played[-1]
        if last == "fold":
            return -0.5 if len(state.played) % 2 else 0.5
        stake = 1.0 if last == "call" else 0.5
        return stake if _CARDS.index(state.cards[0]) > _CARDS.index(state.cards[1]) else -stake

    def ending(self, state: Hands) -> str:
        """The cards, unless somebody folded, and the winner."""
        winner = PLAYERS[0] if self.payoff(state) > 0 else PLAYERS[1]
        shown = "" if state.played[-1] == "fold" else f" with {state.cards[0]} against {state.cards[1]}"
        return f"Play: {', '.join(state.played)}. {winner} wins{shown}."

    def solution(self, state: Hands) -> Sequence[float]:
        """The equilibrium in which the first seat bluffs as often as it may."""
        rank, first = _CARDS.index(state.cards[len(state.played) % 2]), len(state.played) % 2 == 0
        if "bet" in state.played:  # calls
            active = (0.0, _BLUFF + 1 / 3 if first else 1 / 3, 1.0)[rank]
        else:  # bets
            active = (_BLUFF, 0.0, 3 * _BLUFF)[rank] if first else (1 / 3, 0.0, 1.0)[rank]
        return [1 - active, active]


def kuhn(*, rotate: bool = False, expert: Literal["optimal", "random"] = "optimal", split: str = "train") -> Duel:
    """Kuhn's poker."""
    return Duel(Kuhn(), rotate=rotate, expert=expert, split=split)
