"""`cards/dhumbal`: the card game in words, a seat for each player, one decision a step."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from turnwise.envs.base import Env, Info, Reset, Step
from turnwise.envs.cards.dhumbal_cards import CARD_OF, NAMES, VALUES, spell, value_of
from turnwise.envs.cards.dhumbal_heuristics import Aggressive
from turnwise.envs.cards.dhumbal_rules import (
    CALL,
    DECK,
    PASS,
    PILE,
    Decision,
    DhumbalRules,
    Known,
    Outcome,
    Pickup,
    deal,
)
from turnwise.envs.games.game import box, last_box
from turnwise.words import counted

SCALE = 100
"""Coins that make a reward of 1."""
_DISCARD = "discard "
_ASKED = {
    "call": rf"Call, or play on? Answer {box(CALL)} or {box(PASS)}.",
    "discard": rf"What do you discard? Answer like this: {box('discard 7H 8H 9H')}.",
    "draw": rf"Draw the top discard or from the deck? Answer {box(PILE)} or {box(DECK)}.",
}


def write(decision: Decision) -> str:
    """A decision as an action: `\\boxed{discard 7H 8H 9H}`."""
    return box(decision if isinstance(decision, str) else _DISCARD + spell(decision))


def read(action: str) -> Decision | None:
    """The decision in the last box of an action, legal or not; None if there is none."""
    said = (last_box(action) or "").lower()
    if said in (CALL, PASS, PILE, DECK):
        return said
    names = said.removeprefix(_DISCARD).upper().replace(",", " ").split()
    if not said.startswith(_DISCARD) or not names or not all(name in CARD_OF for name in names):
        return None
    return tuple(sorted(CARD_OF[name] for name in names))


class Dhumbal(Env):
    """Rounds of Dhumbal. Coins become rewards when a round ends, and sum to zero over the seats.

    An action that cannot be read or is not legal counts as the weakest legal one: play on, discard the lowest card,
    draw from the deck. A turn that a limit cuts ends the round, and costs the hand as if another had called; the other
    seats then get nothing, so such a round does not sum to zero.
    """

    reward_range: ClassVar[tuple[float, float]] = (-3.2, 3.2)  # five hands of four kings and a queen

    def __init__(
        self,
        *,
        players: int = 4,
        pickup: Pickup = "previous",
        rotate: bool = True,
        rounds: int = 1,
        max_turns: int = 100,
        split: str = "train",
    ) -> None:
        """`rotate`: a seat drawn by chance begins, then the next one; otherwise player_0 begins every round."""
        super().__init__(split=split)
        if rounds < 1:
            raise ValueError(f"rounds is {rounds}; an episode needs at least one round")
        self.rules = DhumbalRules(players=players, pickup=pickup, max_turns=max_turns)
        self.rotate, self.rounds = rotate, rounds
        self.seats = tuple(f"player_{player}" for player in range(players))
        self.over = True

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Deal the first round; only the seed decides it, `task` is not used."""
        super().reset(seed=seed)
        self.coins = [0] * self.rules.players
        self.first = self.rng.randrange(self.rules.players) if self.rotate else 0
        self.played, self.over = 0, False
        self.news, self.heard = list[tuple[int | None, str]](), [0] * self.rules.players
        """What happened, with the seat that did it; how much of that each seat was told."""
        self._deal()
        return self._observation(), self._info()

    def step(self, action: str) -> Step:
        """Make the decision in the action's last box for the seat whose turn it is."""
        if self.over:
            raise ValueError("no round is being played; call reset() first")
        said, mover, legal = read(action), self.round.mover, self.round.legal()
        decision = legal_or_weakest(said, legal)
        self._note(mover, decision)
        self.round.decide(decision)
        outcome, rewards = self.round.outcome, {}
        if outcome is not None:
            rewards = {seat: coins / SCALE for seat, coins in zip(self.seats, outcome.coins, strict=True)}
            self._settle(outcome)
        info = {**self._info(), "valid": said in legal, "parsed_action": None if said is None else write(said)}
        info |= {"rewards": rewards} if rewards else {}
        return self._observation(), rewards.get(self.seats[mover], 0.0), self.over, False, info

    def sample_random_action(self) -> str:
        """A random legal decision."""
        return write(self.rng.choice(self.round.legal()))

    def oracle(self) -> str:
        """What the player Aggressive does, the best of the heuristics: it leaves nothing to chance."""
        return write(Aggressive().decide(self.round.known(), random.Random(0)))

    def _deal(self) -> None:
        self.round = deal(self.rules, self.rng, first=self.first, coins=self.coins)

    def _settle(self, outcome: Outcome) -> None:
        self.coins = [sum(pair) for pair in zip(self.coins, outcome.coins, strict=True)]
        self.news.append((None, self._result(outcome)))
        self.played += 1
        self.over = self.played == self.rounds
        if not self.over:
            self.first = (self.first + 1) % self.rules.players if self.rotate else 0
            self._deal()

    def _result(self, outcome: Outcome) -> str:
        how = "The turns are over" if outcome.forced else f"{self.seats[outcome.caller]} called"
        hands = ", ".join(f"{seat} {value}" for seat, value in zip(self.seats, outcome.values, strict=True))
        won = outcome.coins[outcome.winner]
        return f"{how}. Hands: {hands}. {self.seats[outcome.winner]} wins {counted(won, 'coin')}."

    def _note(self, mover: int, decision: Decision) -> None:
        """Keep what the others see of a decision."""
        if isinstance(decision, tuple):
            self.news.append((mover, f"{self.seats[mover]} discards {spell(decision)}."))
        elif decision == PILE:
            self.news.append((mover, f"{self.seats[mover]} draws {NAMES[self.round.pile[-1]]} from the pile."))
        elif decision == DECK:
            self.news.append((mover, f"{self.seats[mover]} draws from the deck."))

    def _observation(self) -> str:
        if self.over:
            totals = ", ".join(f"{seat} {coins:+}" for seat, coins in zip(self.seats, self.coins, strict=True))
            return f"{self.news[-1][1]}\nCoins: {totals}."
        known = self.round.known()
        return "\n".join([*self._tell(known.seat), describe(known, self.seats)])

    def _tell(self, seat: int) -> list[str]:
        """What happened since the seat was last told: the rules at first, then what others did."""
        told, self.heard[seat] = self.heard[seat], len(self.news) + 1
        rules = [] if told else [self._introduction()]
        return [*rules, *(text for who, text in self.news[max(told - 1, 0) :] if who != seat)]

    def _introduction(self) -> str:
        limit = counted(self.rules.max_turns, "turn")
        return (
            "Dhumbal. Discard one card, two to four of a rank, or a run of three or more of a suit (ace low). Then "
            "draw one card. A = 1, T = 10, J = 11, Q = 12, K = 13. With 10 or less you may call: if you alone are "
            "lowest, all pay you what they hold; otherwise you pay for every hand. "
            f"After {limit} the lowest hand has to call."
        )

    def _info(self) -> Info:
        if self.over:
            most = max(self.coins)
            success = {seat: coins == most > 0 for seat, coins in zip(self.seats, self.coins, strict=True)}
            return {"success": success}
        known = self.round.known()
        owed = max(value_of(known.hand), 1)  # a hand may be empty before the draw
        return {"seat": self.seats[known.seat], "known": known.plain(), "cut_reward": -owed / SCALE}


def describe(known: Known, seats: tuple[str, ...]) -> str:
    """The position as the mover sees it, and what is asked."""
    hand = sorted(known.hand, key=lambda card: (VALUES[card], card))
    others = ", ".join(f"{seats[seat]} {size}" for seat, size in enumerate(known.sizes) if seat != known.seat)
    return (
        f"You are {seats[known.seat]}. Your hand: {spell(hand)} = {value_of(hand)}. "
        f"Top discard: {NAMES[known.offered]}. Cards of the others: {others}.\n{_ASKED[known.phase]}"
    )


def legal_or_weakest(said: Decision | None, legal: list[Decision]) -> Decision:
    """What was said if it is legal, otherwise the weakest decision of the phase."""
    if said is not None and said in legal:
        return said
    melds = [decision for decision in legal if isinstance(decision, tuple) and len(decision) == 1]
    return min(melds, key=lambda meld: VALUES[meld[0]]) if melds else legal[-1]
