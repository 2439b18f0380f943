"""The players of Dhumbal that need no training, by name: `make_player("cards/dhumbal:ismcts", iterations=50)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turnwise.call_options import mistake_in_options
from turnwise.envs.cards.dhumbal_heuristics import (
    Aggressive,
    Balanced,
    CardPlayer,
    Conservative,
    Opportunistic,
    RandomCards,
)
from turnwise.envs.cards.dhumbal_search import Ismcts, Mcts
from turnwise.outside import load_class

PLAYERS: dict[str, Callable[..., CardPlayer]] = {
    "cards/dhumbal:aggressive": Aggressive,
    "cards/dhumbal:conservative": Conservative,
    "cards/dhumbal:balanced": Balanced,
    "cards/dhumbal:opportunistic": Opportunistic,
    "cards/dhumbal:random": RandomCards,
    "cards/dhumbal:mcts": Mcts,
    "cards/dhumbal:ismcts": Ismcts,
}

LEARNED = "cards/dhumbal:learned"
"""An agent that plays a network from a file (`options: {path: FILE}`)."""


def make_player(name: str, **options: Any) -> CardPlayer:
    """One of `PLAYERS`, or a class as package.module:Class."""
    made = PLAYERS.get(name) or load_class(name, key="player", methods=("decide",))
    if mistake := mistake_in_options(made, options):
        raise ValueError(f"{name}: {mistake}")
    try:
        return made(**options)
    except TypeError as error:
        raise ValueError(f"{name} cannot be made from its options: {error}") from error
