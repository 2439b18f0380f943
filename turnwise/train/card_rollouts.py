"""Rounds of Dhumbal for networks that learn it: many at once, so that the network decides for all of them together."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from turnwise.envs.cards.dhumbal_features import encode, slots
from turnwise.envs.cards.dhumbal_heuristics import (
    Aggressive,
    Balanced,
    CardPlayer,
    Conservative,
    Opportunistic,
    RandomCards,
)
from turnwise.envs.cards.dhumbal_rules import DhumbalRules, Known, Round, deal

COINS = 100
"""Coins that make a reward of 1."""
OPPONENTS: tuple[CardPlayer | None, ...] = (
    *(Aggressive(), Conservative(), Balanced(), Opportunistic(), RandomCards()),
    None,
)
"""Who sits with the learner; None is the learner itself."""
Choose = Callable[[Tensor, Tensor], tuple[list[int], list[float]]]
"""Slots and their log-probs, from features [N, width] and legal slots [N, slots]."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """One decision of the learner: what it saw, what it could do, and what it did."""

    features: list[float]
    legal: list[bool]
    slot: int
    logprob: float


@dataclass(kw_only=True)
class _Game:
    """A round that is being played; seats without a player are the learner's."""

    state: Round
    players: Sequence[CardPlayer | None]
    taken: dict[int, list[Taken]] = field(default_factory=dict[int, list[Taken]])

    def advance(self, rng: random.Random) -> bool:
        """Let the others play until the learner has to decide; False if the round is over."""
        while self.state.phase != "over":
            player = self.players[self.state.mover]
            if player is None:
                return True
            self.state.decide(player.decide(self.state.known(), rng))
        return False

    def apply(self, taken: Taken) -> None:
        """Make the learner's decision."""
        self.taken.setdefault(self.state.mover, []).append(taken)
        decision = slots(self.state.known())[taken.slot]
        assert decision is not None, "an action that is not legal has no probability"
        self.state.decide(decision)

    def results(self) -> list[SeatRound]:
        """The learner's seats, once the round is over."""
        assert self.state.outcome is not None
        coins = self.state.outcome.coins
        return [SeatRound(taken=taken, reward=coins[seat] / COINS) for seat, taken in self.taken.items()]


@dataclass(frozen=True, kw_only=True)
class SeatRound:
    """A seat of the learner in one round: its decisions and what it won."""

    taken: list[Taken]
    reward: float


def view_of(known: Known) -> tuple[list[float], list[bool]]:
    """What a network gets: features and legal slots."""
    return encode(known), [decision is not None for decision in slots(known)]


def play_rounds(choose: Choose, *, count: int, rng: random.Random) -> list[SeatRound]:
    """Rounds of two to four players in which the learner has one seat, and others by chance."""
    games = [_seat(rng) for _ in range(count)]
    waiting = [game for game in games if game.advance(rng)]
    while waiting:
        views = [view_of(game.state.known()) for game in waiting]
        chosen, logprobs = choose(
            torch.tensor([seen for seen, _ in views]), torch.tensor([legal for _, legal in views])
        )
        for game, (features, legal), slot, logprob in zip(waiting, views, chosen, logprobs, strict=True):
            game.apply(Taken(features=features, legal=legal, slot=slot, logprob=logprob))
        waiting = [game for game in waiting if game.advance(rng)]
    return [seat for game in games for seat in game.results()]


def _seat(rng: random.Random) -> _Game:
    count = rng.choice((2, 4))
    players = [None, *(rng.choice(OPPONENTS) for _ in range(count - 1))]
    rng.shuffle(players)
    return _Game(state=deal(DhumbalRules(players=count), rng, first=rng.randrange(count)), players=players)
