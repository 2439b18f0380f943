"""Dhumbal in numbers, for networks: what a seat knows as a vector, and its decisions as numbered slots.

The vector of `encode`, all numbers between 0 and 1:

| places | what |
|---|---|
| 52 | own hand, one place a card |
| 52 | the discard that may be drawn |
| 3 | phase: call, discard, draw |
| 4 | cards of the others / 5, from the next seat on; 0 for seats that are empty |
| 4 | value of the hand / 65, turns / limit, cards in the deck / 52, coins between the last (0) and the leader (1) |
| 32 | for each of the 16 melds that may be discarded: value / 65 and cards / 5 |

The 20 slots are call, pass, pile, deck and the melds of the hand, most valuable first. Slots without a decision are not
legal.
"""

from __future__ import annotations

from turnwise.envs.cards.dhumbal_cards import Meld, legal_melds, value_of
from turnwise.envs.cards.dhumbal_rules import CALL, DECK, HAND, PASS, PILE, Decision, Known

MELDS = 16
"""The most melds that five cards allow: four of a rank and another card."""
SLOTS = 4 + MELDS
_PHASES = ("call", "discard", "draw")
_MOST = 65.0  # no hand counts more
_OTHERS = 4
WIDTH = 52 + 52 + len(_PHASES) + _OTHERS + 4 + 2 * MELDS


def slots(known: Known) -> list[Decision | None]:
    """The decision behind each slot; None where there is none."""
    empty: list[Decision | None] = [None] * SLOTS
    if known.phase == "call":
        return [CALL, PASS, *empty[2:]]
    if known.phase == "draw":
        return [None, None, PILE, DECK, *empty[4:]]
    melds = ordered_melds(known.hand)
    return [*empty[:4], *melds, *empty[4 + len(melds) :]]


def ordered_melds(hand: list[int]) -> list[Meld]:
    """The melds of a hand, most valuable first; of equal value more cards first."""
    return sorted(legal_melds(hand), key=lambda meld: (-value_of(meld), -len(meld), meld))


def encode(known: Known) -> list[float]:
    """The vector of the module's table."""
    vector = [0.0] * 104
    for card in known.hand:
        vector[card] = 1.0
    vector[52 + known.offered] = 1.0
    vector += [float(known.phase == phase) for phase in _PHASES]
    players = len(known.sizes)
    others = [known.sizes[(known.seat + place) % players] / HAND for place in range(1, players)]
    vector += [*others, *[0.0] * (_OTHERS - len(others))]
    lowest, highest = min(known.coins), max(known.coins)
    standing = (known.coins[known.seat] - lowest) / (highest - lowest) if highest > lowest else 0.5
    vector += [value_of(known.hand) / _MOST, known.turn / known.rules.max_turns, known.deck / 52, standing]
    melds = ordered_melds(known.hand) if known.phase == "discard" else []
    described = [number for meld in melds for number in (value_of(meld) / _MOST, len(meld) / HAND)]
    return [*vector, *described, *[0.0] * (2 * MELDS - len(described))]
