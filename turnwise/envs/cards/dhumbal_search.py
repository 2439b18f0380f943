"""Players of Dhumbal that search: they imagine the cards that they cannot see and play rounds to their end.

Both respect what their seat knows: hidden cards are dealt by chance for every imagined round, everybody has the legal
decisions of their own imagined hand, and a round is worth the coins that the rules pay.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from math import log, sqrt
from typing import Literal

from turnwise.envs.cards.dhumbal_cards import CARDS
from turnwise.envs.cards.dhumbal_heuristics import Aggressive, CardPlayer
from turnwise.envs.cards.dhumbal_playout import play_out_at_random
from turnwise.envs.cards.dhumbal_rules import DECK, Decision, Known, Round

_SCALE = 100.0
"""Coins that count as one unit of utility, so that √2 explores as for values around one."""


def imagine(known: Known, rng: random.Random) -> Round:
    """A whole round that agrees with all that a seat knows, each with the same probability."""
    seen = {*known.hand, *known.pile, *known.laid}
    shown = [list(cards) for cards in known.taken]
    for seat, cards in enumerate(shown):
        seen.update(cards if seat != known.seat else ())
    unseen = [card for card in CARDS if card not in seen]
    rng.shuffle(unseen)
    hands: list[list[int]] = []
    for seat, size in enumerate(known.sizes):
        own = list(known.hand) if seat == known.seat else list(shown[seat])
        hands.append(own + [unseen.pop() for _ in range(size - len(own))])
    return Round(
        rules=known.rules,
        rng=rng,
        hands=hands,
        deck=unseen,
        pile=list(known.pile),
        mover=known.seat,
        taken=shown,
        turn=known.turn,
        phase=known.phase,
        laid=known.laid,
        coins=known.coins,
    )


@dataclass(slots=True)
class _Edge:
    """A decision at a node: how often it was legal and taken, what it brought who took it, and what followed."""

    legal: int = 0
    visits: int = 0
    total: float = 0.0
    follow: dict[Hashable, _Node] = field(default_factory=dict["Hashable", "_Node"])


@dataclass(slots=True)
class _Node:
    """A place in the tree, where one player decides."""

    edges: dict[Decision, _Edge] = field(default_factory=dict[Decision, _Edge])


@dataclass(kw_only=True)
class TreeSearch:
    """What both searches share: a budget, and rounds that begin in the tree and end at random."""

    iterations: int = 100
    """Imagined rounds for one decision."""
    seconds: float = 1.5
    """No further round begins after this time, though one always does."""
    exploration: float = sqrt(2)
    rollouts: Literal["random", "aggressive"] = "random"
    """How an imagined round ends beyond the tree: at random as in the paper, or as the player Aggressive would."""
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        numbers = isinstance(self.iterations, int) and isinstance(self.seconds, int | float)
        if not numbers or self.iterations < 1 or self.seconds <= 0:
            raise ValueError(
                "a search needs iterations of at least 1 and seconds above 0, "
                f"not iterations={self.iterations!r} and seconds={self.seconds!r}"
            )
        if self.rollouts not in ("random", "aggressive"):
            raise ValueError(f"rollouts is {self.rollouts!r}; choose random or aggressive")

    def _deadline(self) -> float:
        return self.clock() + self.seconds

    def _iterate(self, root: _Node, imagined: Round, observer: int | None, rng: random.Random) -> None:
        """One round: down the tree to a decision that was never tried, then at random; its result goes back up.

        `observer` is who sees what the tree distinguishes; None: everything is seen.
        """
        path: list[tuple[int, _Edge]] = []
        node = root
        while imagined.phase != "over":
            mover = imagined.mover
            decision, edge = self._select(node, imagined, rng)
            path.append((mover, edge))
            imagined.decide(decision)
            if edge.visits == 0:
                break
            drawn = imagined.hands[mover][-1] if decision == DECK and observer in (None, mover) else None
            node = edge.follow.setdefault(drawn, _Node())
        at_random = self.rollouts == "random"
        coins = play_out_at_random(imagined, rng) if at_random else play_out(imagined, rng, Aggressive())
        for mover, edge in path:
            edge.visits += 1
            edge.total += coins[mover] / _SCALE

    def _select(self, node: _Node, imagined: Round, rng: random.Random) -> tuple[Decision, _Edge]:
        """An untried decision if there is one, otherwise the one with the highest bound for the mover.

        The bound counts how often a decision was legal, not how often the node was visited: legal ones differ between
        imagined hands.
        """
        legal = imagined.legal()
        for decision in legal:
            if decision not in node.edges:
                node.edges[decision] = _Edge()
            node.edges[decision].legal += 1
        if untried := [decision for decision in legal if not node.edges[decision].visits]:
            chosen = rng.choice(untried)
        else:
            chosen = max(legal, key=lambda decision: self._bound(node.edges[decision]))
        return chosen, node.edges[chosen]

    def _bound(self, edge: _Edge) -> float:
        return edge.total / edge.visits + self.exploration * sqrt(log(edge.legal) / edge.visits)


@dataclass(kw_only=True)
class Mcts(TreeSearch):
    """Tree search in a few imagined rounds, as if all cards lay open; the decision that most of them visit wins."""

    worlds: int = 5
    """Imagined rounds that share the iterations."""

    def decide(self, known: Known, rng: random.Random) -> Decision:
        """The decision visited most often over all worlds."""
        deadline, worlds = self._deadline(), min(self.worlds, self.iterations)
        found: dict[Decision, _Edge] = {}
        for world in range(worlds):
            start, root = imagine(known, rng), _Node()
            for step in range(self.iterations // worlds):
                if (world or step) and self.clock() > deadline:
                    break
                self._iterate(root, copy_round(start, rng), None, rng)
            for decision, edge in root.edges.items():
                whole = found.setdefault(decision, _Edge())
                whole.visits += edge.visits
                whole.total += edge.total
        return _most_visited(found)


@dataclass(kw_only=True)
class Ismcts(TreeSearch):
    """Single-observer information-set search: new hidden cards every time, one tree over what the seat would see."""

    def decide(self, known: Known, rng: random.Random) -> Decision:
        """The decision visited most often."""
        deadline, root = self._deadline(), _Node()
        for step in range(self.iterations):
            if step and self.clock() > deadline:
                break
            self._iterate(root, imagine(known, rng), known.seat, rng)
        return _most_visited(root.edges)


def _most_visited(edges: Mapping[Decision, _Edge]) -> Decision:
    """The decision that was tried most often; of several, the one that brought most."""
    return max(edges, key=lambda decision: (edges[decision].visits, edges[decision].total))


def copy_round(state: Round, rng: random.Random) -> Round:
    """The same round, to be played on by itself."""
    return Round(
        rules=state.rules,
        rng=rng,
        hands=[list(hand) for hand in state.hands],
        deck=list(state.deck),
        pile=list(state.pile),
        mover=state.mover,
        taken=[list(cards) for cards in state.taken],
        turn=state.turn,
        phase=state.phase,
        laid=state.laid,
        coins=state.coins,
    )


def play_out(state: Round, rng: random.Random, player: CardPlayer) -> list[int]:
    """Let one player decide for everybody until the round ends; returns what each seat wins."""
    while state.phase != "over":
        state.decide(player.decide(state.known(), rng))
    assert state.outcome is not None
    return state.outcome.coins
