"""Players of Dhumbal that follow fixed rules: four temperaments, and one that plays at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from turnwise.envs.cards.dhumbal_cards import VALUES, Meld, longest_runs, rank_groups, value_of
from turnwise.envs.cards.dhumbal_rules import CALL, DECK, MAY_CALL, PASS, PILE, Decision, Known


class CardPlayer(Protocol):
    """Who plays cards: decides from what its seat may know, with the generator that it is given."""

    def decide(self, known: Known, rng: random.Random) -> Decision:
        """One of `known.legal()`."""
        ...


class RandomCards:
    """Calls with probability one half where it may, and chooses melds and draws uniformly."""

    def decide(self, known: Known, rng: random.Random) -> Decision:
        """Any legal decision, each as likely as the others."""
        return rng.choice(known.legal())


@dataclass(frozen=True, kw_only=True)
class Temperament:
    """What distinguishes the heuristics: when they call, how much the value of a discard counts, what they draw."""

    calls: Callable[[int, Known, random.Random], bool]
    """From the value of the hand."""
    weight: float
    """How much the value of a discard counts."""
    threshold: int
    """The highest discard that is worth drawing."""


class Heuristic:
    """One of the paper's four players: they differ by their temperament alone."""

    temperament: ClassVar[Temperament]

    def decide(self, known: Known, rng: random.Random) -> Decision:
        """Call, discard and draw by fixed rules; only some calls are left to chance."""
        value = value_of(known.hand)
        if known.phase == "call":
            return CALL if self.temperament.calls(value, known, rng) else PASS
        if known.phase == "discard":
            return (
                keep_low(known.hand, value) if value <= MAY_CALL else shed(known.hand, value, self.temperament.weight)
            )
        limit = self.temperament.threshold + (2 if value > 15 else -1 if value <= 12 else 0)
        return PILE if VALUES[known.offered] <= limit else DECK


def shed(hand: list[int], value: int, weight: float) -> Meld:
    """The meld that lightens a hand most: value, number of cards, and a large bonus if the rest may call."""
    best: Meld = ()
    most = -1.0
    for meld in [*[(card,) for card in hand], *rank_groups(hand), *longest_runs(hand)]:
        size, worth = len(meld), value_of(meld)
        score = worth * weight + 10 * worth / value
        if size > 1:
            score += 2 * size + (3 if size > 2 and meld[0] // 13 == meld[-1] // 13 else 0)
        if value - worth <= MAY_CALL:
            score += 50
        if score > most:
            best, most = meld, score
    return best


def keep_low(hand: list[int], value: int) -> Meld:
    """From a hand that could call: the highest card or group that leaves room for a draw of 5, or the lowest card."""
    singles: list[Meld] = [(card,) for card in sorted(hand, key=lambda card: -VALUES[card])]
    for meld in [*singles, *rank_groups(hand)]:
        if value - value_of(meld) + 5 <= MAY_CALL:
            return meld
    return singles[-1]


def _balanced(value: int, known: Known, rng: random.Random) -> bool:
    return value <= 5 or rng.random() < (0.7 if value <= 8 else 0.4)


def _opportunistic(value: int, known: Known, rng: random.Random) -> bool:
    rich = known.coins[known.seat] * len(known.coins) > sum(known.coins)
    late = 0.15 if known.turn > 20 else 0.0
    return value <= 7 or rng.random() < (0.8 if rich else 0.3) + 0.05 * (10 - value) + late


class Aggressive(Heuristic):
    """Calls whenever it may."""

    temperament = Temperament(calls=lambda value, known, rng: True, weight=1.0, threshold=4)


class Conservative(Heuristic):
    """Calls with 7 or less."""

    temperament = Temperament(calls=lambda value, known, rng: value <= 7, weight=0.6, threshold=3)


class Balanced(Heuristic):
    """Calls with 5 or less, and with more by chance."""

    temperament = Temperament(calls=_balanced, weight=0.8, threshold=4)


class Opportunistic(Heuristic):
    """Calls with 7 or less, and with more by chance: more often when it is ahead, and late in a round."""

    temperament = Temperament(calls=_opportunistic, weight=0.8, threshold=4)
