"""Players of card games as agents at a seat: `CARD_AGENTS["cards/dhumbal:ismcts"](iterations=50)`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from turnwise.envs.cards.dhumbal import write
from turnwise.envs.cards.dhumbal_heuristics import CardPlayer
from turnwise.envs.cards.dhumbal_players import PLAYERS, make_player
from turnwise.envs.cards.dhumbal_rules import Known
from turnwise.envs.cards.dhumbal_search import TreeSearch
from turnwise.rollout.agents import Action, Agent, View


@dataclass(frozen=True)
class CardAgent(Agent):
    """A player of Dhumbal at a seat: it decides from `view.info["known"]` with the seat's own generator."""

    player: CardPlayer

    async def act(self, view: View) -> Action:
        """The player's decision; a search does not stop the other episodes."""
        if "known" not in view.info:
            raise ValueError(f"{type(self.player).__name__} plays cards/dhumbal only; seat it there")
        decide = partial(self.player.decide, Known.from_plain(view.info["known"]), view.rng)
        slow = isinstance(self.player, TreeSearch)
        return Action(text=write(await asyncio.to_thread(decide) if slow else decide()))


def _make(name: str, **options: Any) -> Agent:
    return CardAgent(make_player(name, **options))


CARD_AGENTS: dict[str, Callable[..., Agent]] = {name: partial(_make, name) for name in PLAYERS}
"""The players that a seat may name."""
