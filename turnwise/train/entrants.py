"""Players by what names them: scripted agents, run folders and models, servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.chat_endpoint import ChatEndpoint
from turnwise.envs.cards.dhumbal_players import LEARNED
from turnwise.evaluate.evaluation import evaluate
from turnwise.outside import is_outside
from turnwise.recipe.loading import find_model, one_model
from turnwise.recipe.schema import Recipe, Rollout, SeatChoice
from turnwise.recipe.seating import AGENTS, nearest_agent
from turnwise.rollout.agents import Agent, ScriptedAgent
from turnwise.rollout.endpoint_agent import EndpointAgent
from turnwise.rollout.episode import EpisodeSpec
from turnwise.sources.cast import Cast, Voice
from turnwise.sources.player import Player, make_scheduler
from turnwise.train.casting import make_agent
from turnwise.train.setup import load_policy, make_renderer
from turnwise.types import Group
from turnwise.waiting import finish

_SERVERS = ("http://", "https://")
_NETWORK = ".safetensors"
"""How the file of a card player ends."""


@dataclass(kw_only=True)
class Entrants:
    """All players of a tournament as agents, and what plays episodes with them."""

    agents: dict[str, Agent]
    rollout: Rollout
    seed: int
    player: Player | None
    """Holds the models; None if there are none."""

    def play(self, specs: Sequence[EpisodeSpec], seated: Mapping[str, Agent]) -> list[Group]:
        """Play episodes with an agent at each seat."""
        if self.player is not None:
            return self.player.play_with(specs, seated)
        return finish(self._play(specs, seated))

    async def _play(self, specs: Sequence[EpisodeSpec], seated: Mapping[str, Agent]) -> list[Group]:
        async with make_scheduler(self.rollout, self.seed) as scheduler:
            return await scheduler.run_groups(specs, seated)


@contextmanager
def entering(
    players: Mapping[str, str],
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    rollout: Rollout,
    temperature: float,
    seed: int,
    device: str,
) -> Iterator[Entrants]:
    """Load everybody, with `options` of scripted agents by name; models share this process until the block ends."""
    sampling = {"max_tokens": rollout.max_tokens, "temperature": temperature}
    agents: dict[str, Agent] = {}
    for name, what in players.items():
        chosen = dict((options or {}).get(name, {}))
        if what.startswith(_SERVERS):
            agents[name] = _served(name, what, sampling)
        elif (choice := _scripted(name, what, chosen)) is not None:
            agents[name] = ScriptedAgent(make_agent(f"--player {name}", choice))
        elif chosen:
            raise ValueError(
                f"--player {name}: {what} is a model and takes no options; remove everything from the ? on"
            )
    voices = [
        load_voice(what, name=name, changes={"device": device}) for name, what in players.items() if name not in agents
    ]
    if not voices:
        yield Entrants(agents=agents, rollout=rollout, seed=seed, player=None)
        return
    lockstep = not any(what.startswith(_SERVERS) for what in players.values())
    player = Player(Cast(voices=voices, seats={}), rollout=rollout, seed=seed, lockstep=lockstep)
    try:
        speakers = player.speakers(temperature)
        yield Entrants(agents={**agents, **speakers}, rollout=rollout, seed=seed, player=player)
    finally:
        player.close()


def _served(name: str, what: str, sampling: Mapping[str, Any]) -> Agent:
    """A model behind an address; it samples like a model in this process."""
    url, _, model = what.partition("#")
    if not model:
        raise ValueError(f"{name}={what}: name the model after the address, such as {what}#my-model")
    return EndpointAgent(ChatEndpoint(url, model=model), options=sampling, seeded=True)


def _scripted(name: str, what: str, options: dict[str, Any]) -> SeatChoice | None:
    """The choice of an agent that is no model; None for a model."""
    if what.endswith(_NETWORK):
        return SeatChoice(agent=LEARNED, options={"path": what, **options})
    if what in AGENTS or is_outside(what):
        return SeatChoice(agent=what, options=options)
    if Path(what).exists():
        return None
    if meant := nearest_agent(what):  # a model of that name would be looked for on the hub, which is slow to say no
        raise ValueError(f"--player {name}: there is no player {what}; did you mean {meant}?")
    if ":" in what:  # no model has a colon in its name
        known = ", ".join(AGENTS)
        raise ValueError(f"--player {name}: there is no player {what}; choose {known}, or package.module:Class")
    return None


def load_voice(what: str, *, name: str, changes: Mapping[str, Any]) -> Voice:
    """The model of a run, a checkpoint or a folder, spoken to as its recipe says."""
    recipe, weights = find_model(what, changes)
    source = one_model(weights) if isinstance(weights, Path) else weights
    policy = load_policy(recipe, source, frozen=True)
    return Voice(name=name, policy=policy, renderer=make_renderer(recipe, policy))


@dataclass(frozen=True, kw_only=True)
class ScriptedPlayer:
    """Every seat is played by one scripted agent."""

    agent: Agent
    recipe: Recipe

    def play(
        self, specs: Sequence[EpisodeSpec], temperature: float | None = None, *, alone: str | None = None
    ) -> list[Group]:
        """All episodes, by task."""
        return finish(self._play(specs))

    async def _play(self, specs: Sequence[EpisodeSpec]) -> list[Group]:
        async with make_scheduler(self.recipe.rollout, self.recipe.seed) as scheduler:
            return await scheduler.run_groups(specs, self.agent)


def evaluate_scripted(
    recipe: Recipe, name: str, *, watch: Callable[[list[Group]], None] | None = None
) -> dict[str, float]:
    """The same numbers as for a model, but for tokens, which a scripted agent has none of."""
    agent = ScriptedAgent(make_agent(name, SeatChoice(agent=name)))
    row = evaluate(ScriptedPlayer(agent=agent, recipe=recipe), recipe, watch=watch)
    return {key: value for key, value in row.items() if key != "eval/tokens"}
