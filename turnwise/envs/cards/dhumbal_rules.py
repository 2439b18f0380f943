"""The rules of Dhumbal (also Jhyap, Yaniv): one round, phase by phase, and what a seat may know of it.

A turn has up to three decisions: whether to call (asked only where it is allowed), what to discard, and where to draw.
Decisions are plain values: the words below, or the meld that is discarded.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from turnwise.envs.cards.dhumbal_cards import CARDS, VALUES, Meld, legal_melds, value_of

CALL, PASS, PILE, DECK = "call", "pass", "pile", "deck"
Phase = Literal["call", "discard", "draw", "over"]
Pickup = Literal["previous", "own"]
Decision = str | Meld

HAND, MAY_CALL, MOST_PAID = 5, 10, 100
"""Cards dealt; the highest hand that may call; the most that one hand costs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DhumbalRules:
    """The options of the game."""

    players: int = 4
    pickup: Pickup = "previous"
    """Which discard may be drawn: the `previous` player's, as people play, or one's `own`, as in the paper's code."""
    max_turns: int = 100
    """Turns of all players together, after which the lowest hand has to call."""

    def __post_init__(self) -> None:
        if not 2 <= self.players <= 5:
            raise ValueError(f"players is {self.players}; Dhumbal has 2 to 5 players")
        if self.pickup not in get_args(Pickup):
            raise ValueError(f"pickup is {self.pickup!r}; choose one of {', '.join(get_args(Pickup))}")
        if self.max_turns < 1:
            raise ValueError(f"max_turns is {self.max_turns}; a round needs at least one turn")


@dataclass(kw_only=True, slots=True)
class Known:
    """All that a seat may know: its own hand and what everybody saw. Read it only; a round shares its lists."""

    rules: DhumbalRules
    seat: int
    phase: Phase
    hand: list[int]
    pile: list[int]
    """Discards, the last one on top."""
    laid: Meld
    """What this player discards in this turn; it goes onto the pile before or after the draw."""
    deck: int
    """How many cards are left to draw."""
    sizes: list[int]
    """Cards in each hand."""
    taken: list[list[int]]
    """Cards of each hand that were drawn from the pile, so that all know them."""
    turn: int
    """Turns of all players so far."""
    coins: Sequence[int]
    """What each player has won in earlier rounds."""

    def plain(self) -> dict[str, Any]:
        """As plain data that shares nothing with the round."""
        lists = {"hand": list(self.hand), "pile": list(self.pile), "sizes": list(self.sizes)}
        lists |= {"laid": list(self.laid), "coins": list(self.coins)}
        taken, rules = [list(cards) for cards in self.taken], asdict(self.rules)
        own = {"seat": self.seat, "phase": self.phase, "deck": self.deck, "turn": self.turn}
        return {"rules": rules, **own, **lists, "taken": taken}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Known:
        """What `plain` wrote."""
        return cls(**{**plain, "rules": DhumbalRules(**plain["rules"]), "laid": tuple(plain["laid"])})

    def legal(self) -> list[Decision]:
        """All decisions that are allowed now."""
        return legal_decisions(self.phase, self.hand)

    @property
    def offered(self) -> int:
        """The discard that may be drawn."""
        return self.pile[-1]


def legal_decisions(phase: Phase, hand: Sequence[int]) -> list[Decision]:
    """All decisions that a player with this hand may make in a phase."""
    if phase == "call":
        return [CALL, PASS]
    if phase == "draw":
        return [PILE, DECK]
    return [] if phase == "over" else [*legal_melds(hand)]


@dataclass(kw_only=True, slots=True)
class Outcome:
    """How a round ended."""

    caller: int
    winner: int
    forced: bool
    """Whether the turn limit called, not a player."""
    values: list[int]
    """What each hand counted."""
    coins: list[int]
    """What each player won; they sum to zero."""


@dataclass(kw_only=True, slots=True)
class Round:
    """One round: `deal(DhumbalRules(), rng)`, then `decide` for whoever `mover` is until `phase` is over."""

    rules: DhumbalRules
    rng: random.Random
    hands: list[list[int]]
    deck: list[int]
    """The last card is drawn next."""
    pile: list[int]
    mover: int
    taken: list[list[int]]
    turn: int = 0
    phase: Phase = "discard"
    laid: Meld = ()
    outcome: Outcome | None = None
    coins: Sequence[int] = field(default_factory=tuple)

    def known(self) -> Known:
        """What the mover may know."""
        return Known(
            rules=self.rules,
            seat=self.mover,
            phase=self.phase,
            hand=self.hands[self.mover],
            pile=self.pile,
            laid=self.laid,
            deck=len(self.deck),
            sizes=[len(hand) for hand in self.hands],
            taken=self.taken,
            turn=self.turn,
            coins=self.coins,
        )

    def legal(self) -> list[Decision]:
        """All decisions that the mover may make."""
        return legal_decisions(self.phase, self.hands[self.mover])

    def decide(self, decision: Decision) -> None:
        """Apply a legal decision of the mover; one that is not legal is an error of the caller."""
        if self.phase == "call":
            assert decision in (CALL, PASS), decision
            if decision == CALL:
                self._end(self.mover)
            else:
                self.phase = "discard"
        elif self.phase == "discard":
            assert isinstance(decision, tuple), decision
            self._discard(decision)
        else:
            assert self.phase == "draw", self.phase
            assert decision in (PILE, DECK), decision
            self._draw(decision)

    def _discard(self, meld: Meld) -> None:
        hand, taken = self.hands[self.mover], self.taken[self.mover]
        for card in meld:
            hand.remove(card)
            if card in taken:
                taken.remove(card)
        if self.rules.pickup == "own":
            self.pile += meld
        else:
            self.laid = meld
        self.phase = "draw"
        if not hand:
            self.pile += self.laid
            self.laid = ()
            self._end(self.mover)

    def _draw(self, source: str) -> None:
        if source == PILE:
            card = self.pile.pop()
            self.taken[self.mover].append(card)
            self.pile += self.laid
        else:
            self.pile += self.laid
            card = self.draw_from_deck()
        self.laid = ()
        self.hands[self.mover].append(card)
        self.turn += 1
        if self.turn == self.rules.max_turns:
            values = [value_of(hand) for hand in self.hands]
            return self._end(values.index(min(values)), forced=True)
        self.begin_turn((self.mover + 1) % self.rules.players)

    def draw_from_deck(self) -> int:
        """The next card; where none is left, the pile but for its top is shuffled."""
        if not self.deck:  # hands never grow beyond 25 cards, so that the pile has at least 27 now
            self.deck = self.pile[:-1]
            self.rng.shuffle(self.deck)
            del self.pile[:-1]
        return self.deck.pop()

    def begin_turn(self, mover: int) -> None:
        """Let a player begin a turn."""
        self.mover = mover
        self.phase = "call" if sum([VALUES[card] for card in self.hands[mover]]) <= MAY_CALL else "discard"

    def _end(self, caller: int, *, forced: bool = False) -> None:
        self.phase = "over"
        self.outcome = settle([value_of(hand) for hand in self.hands], caller, forced=forced)


def deal(rules: DhumbalRules, rng: random.Random, *, first: int = 0, coins: Sequence[int] = ()) -> Round:
    """A new round: five cards each, one at a time, one card on the pile, the rest is the deck."""
    deck = rng.sample(CARDS, len(CARDS))
    hands = [[deck.pop() for _ in range(HAND)] for _ in range(rules.players)]  # shuffled, so the order does not matter
    pile = [deck.pop()]
    taken: list[list[int]] = [[] for _ in hands]
    new = Round(
        rules=rules,
        rng=rng,
        hands=hands,
        deck=deck,
        pile=pile,
        mover=first,
        taken=taken,
        coins=tuple(coins) or (0,) * rules.players,
    )
    new.begin_turn(first)
    return new


def settle(values: Sequence[int], caller: int, *, forced: bool = False) -> Outcome:
    """Who wins and who pays: a tie goes against the caller, and a caller who loses pays for every hand, his own too."""
    lowest = min(values)
    others = [player for player, value in enumerate(values) if value == lowest and player != caller]
    winner = others[0] if others else caller
    paid = [min(value, MOST_PAID) for value in values]
    coins = [0] * len(values)
    if winner == caller:
        coins = [-amount for amount in paid]
        coins[caller] = sum(paid) - paid[caller]
    else:
        coins[caller], coins[winner] = -sum(paid), sum(paid)
    return Outcome(caller=caller, winner=winner, forced=forced, values=list(values), coins=coins)
