"""The agent interface, and the agents that need no model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.envs.base import Info
from turnwise.types import StopReason, Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What a seat sees on its turn: `View(episode="geo-17/0", turn=0, observation="Capital of ...?", ...)`."""

    episode: str
    seat: str
    turn: int
    """How many turns this seat has had."""
    observation: str
    info: Info
    reward: float
    """The seat's reward since its last turn."""
    rng: random.Random
    """The seat's own generator, a function of (seed, episode, seat) alone: draw only from it."""
    oracle: Callable[[], Awaitable[str]]
    """Asks the environment's scripted expert for the action."""
    random_action: Callable[[], Awaitable[str]]
    """Asks the environment for a random well-formed action, drawn from `rng`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """One turn of an agent: its text and, if a policy sampled it, the tokens as in `Turn`.

    Example: `Action(text="<search>Mahis</search>", prompt_ids=[1, 5, 6], sampled_ids=[40, 2], logprobs=[-0.1, -0.2])`
    """

    text: str
    prompt_ids: Sequence[int] = ()
    sampled_ids: Sequence[int] = ()
    logprobs: Sequence[float] | None = None
    policy: str = ""
    """The policy that sampled it; an agent without one says nothing that is trained on."""
    policy_version: int = 0
    restarts: bool = False
    call: Mapping[str, Any] | None = None
    heard: Sequence[Sequence[int]] = field(default_factory=list[Sequence[int]])
    streams: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    stop: StopReason | None = None
    """Set if the agent cannot continue (context_full, max_tokens): the text is kept, the environment never sees it."""


class Agent:
    """Base class of agents. Many episodes call one agent at the same time, so state belongs to `view.episode`."""

    async def act(self, view: View) -> Action:
        """The action for one view."""
        raise NotImplementedError(f"{type(self).__name__} must define `async def act(self, view)`")

    async def end(self, trajectory: Trajectory) -> None:
        """The seat's episode is over: free what was kept for it, and fill in `final_ids` if there are tokens."""


class RandomAgent(Agent):
    """Plays random well-formed actions."""

    async def act(self, view: View) -> Action:
        """A random action from the environment."""
        return Action(text=await view.random_action())


class OracleAgent(Agent):
    """Plays the environment's scripted expert, for demonstrations."""

    async def act(self, view: View) -> Action:
        """The expert's action."""
        return Action(text=await view.oracle())


@dataclass(frozen=True, kw_only=True)
class ConstantAgent(Agent):
    """Says the same thing every turn."""

    text: str

    async def act(self, view: View) -> Action:
        """The same text."""
        return Action(text=self.text)


@dataclass(frozen=True)
class FunctionAgent(Agent):
    """A function as an agent: `FunctionAgent(lambda view: view.observation.upper())`; it may be async."""

    function: Callable[[View], str | Action | Awaitable[str | Action]]

    async def act(self, view: View) -> Action:
        """What the function says."""
        answer: Any = self.function(view)
        if isinstance(answer, Awaitable):
            answer = await answer
        return Action(text=answer) if isinstance(answer, str) else answer


@dataclass(frozen=True)
class ScriptedAgent(Agent):
    """Another agent's words alone: whatever tokens it reports, nobody learns from them."""

    agent: Agent

    async def act(self, view: View) -> Action:
        """The agent's text."""
        action = await self.agent.act(view)
        return Action(text=action.text, stop=action.stop)

    async def end(self, trajectory: Trajectory) -> None:
        """Pass it on."""
        await self.agent.end(trajectory)


@dataclass(frozen=True, kw_only=True)
class HumanAgent(Agent):
    """A person at the terminal. The end of the input ends the episode."""

    read: Callable[[str], str] = field(default=input)
    write: Callable[[str], None] = field(default=print)

    async def act(self, view: View) -> Action:
        """Show the observation and read one line, without stopping the other episodes."""
        self.write(view.observation)
        try:
            return Action(text=await asyncio.to_thread(self.read, f"{view.seat}> "))
        except EOFError:
            return Action(text="", stop=StopReason.INVALID)


class PoolAgent(Agent):
    """One of several agents, drawn for every episode by the seat's own generator: equally likely, or by weight."""

    def __init__(self, agents: Sequence[Agent], weights: Sequence[float] | None = None) -> None:
        self._agents, self._weights = list(agents), weights
        self._chosen: dict[tuple[str, str], Agent] = {}

    async def act(self, view: View) -> Action:
        """What the agent of this episode does."""
        if view.turn == 0:
            agents, weights = self._agents, self._weights
            drawn = view.rng.choice(agents) if weights is None else view.rng.choices(agents, weights)[0]
            self._chosen[view.episode, view.seat] = drawn
        return await self._chosen[view.episode, view.seat].act(view)

    async def end(self, trajectory: Trajectory) -> None:
        """Tell the agent of this episode."""
        if agent := self._chosen.pop((trajectory.episode, trajectory.seat), None):
            await agent.end(trajectory)
