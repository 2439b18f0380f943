"""Cards and melds of Dhumbal: a card is an integer from 0 to 51, suit by suit from ace to king."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

RANKS, SUITS = "A23456789TJQK", "CDHS"
CARDS = range(52)
VALUES = tuple(card % 13 + 1 for card in CARDS)
"""An ace is 1, a king 13."""
NAMES = tuple(f"{RANKS[card % 13]}{SUITS[card // 13]}" for card in CARDS)
"""`AC` is the ace of clubs, `TD` the ten of diamonds."""
CARD_OF = {name: card for card, name in enumerate(NAMES)}

Meld = tuple[int, ...]
"""Cards that leave a hand together, in ascending order."""


def value_of(cards: Sequence[int]) -> int:
    """What cards count: `value_of([0, 12])`, an ace and a king, is 14."""
    return sum([VALUES[card] for card in cards])


def spell(cards: Sequence[int]) -> str:
    """Cards as words: `spell([0, 9])` is `AC TC`."""
    return " ".join(NAMES[card] for card in cards)


def rank_groups(hand: Sequence[int]) -> list[Meld]:
    """All cards of a rank, for every rank that a hand has at least twice."""
    by_rank: defaultdict[int, list[int]] = defaultdict(list)
    for card in hand:
        by_rank[card % 13].append(card)
    return [tuple(sorted(cards)) for cards in by_rank.values() if len(cards) > 1]


def longest_runs(hand: Sequence[int]) -> list[Meld]:
    """Runs of one suit that no other card of the hand prolongs: at least three cards, the ace low."""
    runs: list[Meld] = []
    run: list[int] = []
    for card in sorted(hand):
        if run and card == run[-1] + 1 and card % 13:  # an ace begins the next suit
            run.append(card)
            continue
        if len(run) > 2:
            runs.append(tuple(run))
        run = [card]
    return [*runs, tuple(run)] if len(run) > 2 else runs


def legal_melds(hand: Sequence[int]) -> list[Meld]:
    """All that may be discarded: single cards, 2 to 4 of a rank, runs of 3 to 5 of a suit."""
    melds: list[Meld] = [(card,) for card in sorted(hand)]
    for group in rank_groups(hand):
        melds += [meld for size in range(2, len(group) + 1) for meld in combinations(group, size)]
    for run in longest_runs(hand):
        melds += [run[i:j] for i in range(len(run)) for j in range(i + 3, min(i + 5, len(run)) + 1)]
    return melds


def _all_melds() -> tuple[Meld, ...]:
    suits = [CARDS[13 * suit : 13 * suit + 13] for suit in range(4)]
    found = {meld for suit in suits for meld in legal_melds(suit)}
    found |= {meld for rank in range(13) for meld in legal_melds([suit[rank] for suit in suits])}
    return tuple(sorted(found, key=lambda meld: (len(meld), meld)))


ALL_MELDS = _all_melds()
"""The 315 melds that exist: 52 cards, 143 sets of a rank, 120 runs."""
