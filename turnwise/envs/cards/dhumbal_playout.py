"""The end of an imagined round, played at random: where a search spends its time, so it keeps only what pays.

Cards that everybody knows make no difference here, hands count themselves as they change, and a hand is asked for its
melds only if it has any: a set of cards as one number shows that in a few shifts.
"""

from __future__ import annotations

import random

from turnwise.envs.cards.dhumbal_cards import VALUES, legal_melds, value_of
from turnwise.envs.cards.dhumbal_rules import MAY_CALL, Round, settle

_BIT = tuple(1 << card for card in range(len(VALUES)))
_STARTS = sum(bit for card, bit in enumerate(_BIT) if card % 13 <= 10)
"""Where a run of three may begin: ace to jack."""


def play_out_at_random(state: Round, rng: random.Random) -> list[int]:
    """What each seat wins if everybody decides at random from here on; the round is used up.

    Decisions, and the numbers drawn for them, are those of `state.decide(choice(state.legal()))` until it is over.
    """
    draw = rng.random
    if state.phase == "draw":
        state.decide(state.legal()[int(draw() * 2)])
    if state.phase == "over":
        assert state.outcome is not None
        return state.outcome.coins
    hands, pile, own = state.hands, state.pile, state.rules.pickup == "own"
    counts = [value_of(hand) for hand in hands]
    sets = [sum([_BIT[card] for card in hand]) for hand in hands]
    mover, may_call = state.mover, state.phase == "call"
    while True:
        hand, cards = hands[mover], sets[mover]
        if may_call and draw() < 0.5:
            return settle(counts, mover).coins
        if cards & (cards >> 13 | cards >> 26 | cards >> 39) or cards & cards >> 1 & cards >> 2 & _STARTS:
            melds = legal_melds(hand)
            laid = melds[int(draw() * len(melds))]
        else:
            laid = (sorted(hand)[int(draw() * len(hand))],)
        for card in laid:
            hand.remove(card)
            counts[mover] -= VALUES[card]
            sets[mover] ^= _BIT[card]
        if not hand:
            return settle(counts, mover).coins
        if own:
            pile += laid
        if draw() < 0.5:
            card = pile.pop()
            if not own:
                pile += laid
        else:
            if not own:
                pile += laid
            card = state.draw_from_deck()
        hand.append(card)
        counts[mover] += VALUES[card]
        sets[mover] |= _BIT[card]
        state.turn += 1
        if state.turn == state.rules.max_turns:
            return settle(counts, counts.index(min(counts)), forced=True).coins
        mover = (mover + 1) % len(hands)
        may_call = counts[mover] <= MAY_CALL
