"""A chat model behind an OpenAI-compatible address as an agent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from turnwise.chat_endpoint import ChatEndpoint
from turnwise.envs.faults import EpisodeError
from turnwise.rollout.agents import Action, Agent, View
from turnwise.tools.formats import CallError, read_call, write_call
from turnwise.types import StopReason, Trajectory

_MALFORMED = "<tool_call>{}</tool_call>"


@dataclass(kw_only=True)
class _Chat:
    """One seat's conversation."""

    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    tools: Sequence[Any] = ()
    calls: deque[Mapping[str, Any]] = field(default_factory=deque[Mapping[str, Any]])
    """Calls of the last message that were not made yet: a turn makes one."""
    made: str | None = None
    """The call that the next observation answers."""

    def hear(self, observation: str) -> None:
        said: dict[str, Any] = {"role": "user", "content": observation}
        if self.made is not None:
            said = {"role": "tool", "tool_call_id": self.made, "content": observation}
        self.messages.append(said)

    def record(self, message: Mapping[str, Any]) -> str:
        """Keep the model's message; its text."""
        text, calls = message.get("content"), message.get("tool_calls")
        self.calls = deque(each for each in calls if isinstance(each, Mapping)) if isinstance(calls, list) else deque()
        kept: dict[str, Any] = {"role": "assistant", "content": text}
        self.messages.append({**kept, "tool_calls": list(self.calls)} if self.calls else kept)
        return text if isinstance(text, str) else ""

    def next_call(self) -> str:
        """The next call as text that `JsonFormat` reads."""
        given = self.calls.popleft()
        self.made = str(given.get("id", ""))
        call = read_call(given)
        return _MALFORMED if isinstance(call, CallError) else write_call(call)


class EndpointAgent(Agent):
    """`EndpointAgent(ChatEndpoint("http://127.0.0.1:8000/v1", model="my-model"))`.

    Where an environment offers `info["tools"]`, the model gets them as functions. Several calls in one answer are made
    one after the other, a turn each, before the model is asked again.
    """

    def __init__(
        self,
        endpoint: ChatEndpoint,
        *,
        concurrency: int = 32,
        system: str = "",
        options: Mapping[str, Any] | None = None,
        seeded: bool = False,
    ) -> None:
        """`options` go into every request, and with `seeded` a seed that depends on nothing but the episode."""
        self._endpoint, self._system = endpoint, system
        self._options, self._seeded = dict(options or {}), seeded
        self._threads = ThreadPoolExecutor(max_workers=concurrency, thread_name_prefix="turnwise-endpoint")
        self._chats: dict[tuple[str, str], _Chat] = {}

    async def act(self, view: View) -> Action:
        """The model's text, or its next call."""
        if view.turn == 0:
            begin = [{"role": "system", "content": self._system}] if self._system else []
            self._chats[view.episode, view.seat] = _Chat(messages=begin, tools=view.info.get("tools", ()))
        chat = self._chats[view.episode, view.seat]
        chat.hear(view.observation)
        if chat.calls:
            return Action(text=chat.next_call())
        chat.made = None
        answer = await self._ask(chat, view.rng.getrandbits(31) if self._seeded else None)
        text = chat.record(answer)
        if answer.get("finish_reason") == "length":  # as with a model of ours: half a message is no action
            return Action(text=text, stop=StopReason.MAX_TOKENS)
        return Action(text=chat.next_call() if chat.calls else text)

    async def end(self, trajectory: Trajectory) -> None:
        """Forget the conversation."""
        self._chats.pop((trajectory.episode, trajectory.seat), None)

    async def _ask(self, chat: _Chat, seed: int | None) -> dict[str, Any]:
        options = {**self._options, **({"tools": list(chat.tools)} if chat.tools else {})}
        options |= {} if seed is None else {"seed": seed}
        ask = partial(self._endpoint.complete, chat.messages, **options)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        except ConnectionError as error:
            raise EpisodeError(str(error), culprit="agent") from error
