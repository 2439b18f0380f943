"""The conversations of one episode in messages of any role: each call continues one of them or opens another.

A user's program makes such calls, and so does an environment whose tools the chat template shows.

The live episode and the checks of a recorded one go through the same few lines, so that a ledger can be replayed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from turnwise.policy.chat_roles import Roles
from turnwise.policy.rendering import Conversation, Prompt, Renderer
from turnwise.rollout.calling_conversation import (
    ArgumentsAs,
    CallingConversation,
    CallsAs,
    find_arguments_as,
    find_calls_as,
)
from turnwise.rollout.env_messages import call_row
from turnwise.tools.formats import JsonFormat, render_tools
from turnwise.tools.tool import Tool
from turnwise.types import Turn

NO_TOOLS = (
    "the chat template shows no tools; the system message describes them, and calls are written as "
    "<tool_call>{...}</tool_call>"
)
"""What a user is told where tools are meant for the template."""


@dataclass(frozen=True, kw_only=True)
class ProgramCall:
    """What a call adds: `ProgramCall(number=3, after=1, messages=[...])` says something after the answer to call 1."""

    number: int
    after: int | None
    """The earlier call whose answer the new messages follow; None: `messages` is all that there is."""
    messages: Sequence[Mapping[str, Any]]
    """In the form that templates read."""
    tools: Sequence[Mapping[str, Any]] = ()
    """In OpenAI's form; told once, at the beginning of a conversation."""
    native: bool = False
    """Whether the environment reads calls in the syntax of the template; also told once."""

    def as_row(self) -> dict[str, Any]:
        """The same as plain data, for `Turn.call`."""
        row = {"number": self.number, "after": self.after, "messages": [dict(each) for each in self.messages]}
        return row | ({"tools": list(self.tools)} if self.tools else {}) | ({"native": True} if self.native else {})

    @classmethod
    def of(cls, turn: Turn) -> ProgramCall:
        """The call that a turn has recorded."""
        assert turn.call is not None
        return cls(**turn.call)

    @classmethod
    def from_env(cls, number: int, observation: str, info: Mapping[str, Any]) -> ProgramCall:
        """What an environment says in messages, or an observation after such messages."""
        return cls(**call_row(number, observation, info))


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where a call belongs, and its tokens."""

    prompt: Prompt
    sequence: int
    """The number of its sequence, in the order of their first calls."""
    whole: Sequence[int]
    """All tokens before the answer."""


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """A conversation right after an answer of the policy."""

    conversation: Conversation
    sequence: int
    length: int


@dataclass(kw_only=True)
class Branches:
    """The sequences of an episode and where each of its calls stands in them."""

    renderers: Renderers
    sequences: list[list[int]] = field(default_factory=list[list[int]])
    """The tokens of each."""
    native: bool = False
    """Whether calls are in the syntax of the template."""
    _answers: dict[int, _Answer] = field(default_factory=dict[int, _Answer])
    _open: dict[int, tuple[Conversation, int]] = field(default_factory=dict[int, tuple[Conversation, int]])

    def ask(self, call: ProgramCall, renderer: Renderer | None = None) -> Placed:
        """The tokens of a call; another `renderer` may do the work, such as one that belongs to another thread."""
        before = None if call.after is None else self._answers[call.after]
        self.native = self.native or call.native
        conversation, messages = (
            (before.conversation.fork(), call.messages)
            if before is not None
            else (
                self.renderers.open(call.tools, native=self.native),
                self.renderers.introduce(call.tools, call.messages),
            )
        )
        own = conversation.renderer
        conversation.renderer = own if renderer is None else own.with_tokenizer_of(renderer)
        fit = self.renderers.fit_native if self.native else self.renderers.roles.fit
        prompt = conversation.extend(fit(messages, opens=before is None))
        conversation.renderer = own
        if before is None or prompt.restarts:
            placed = self._begin(prompt.ids)
        elif self.has_gone_on(call.after):
            placed = self._begin([*self.sequences[before.sequence][: before.length], *prompt.ids])
        else:
            tokens = self.sequences[before.sequence]
            tokens += prompt.ids
            placed = Placed(prompt=prompt, sequence=before.sequence, whole=tokens)
        self._open[call.number] = (conversation, placed.sequence)
        return placed

    def answer(self, number: int, sampled_ids: Sequence[int]) -> str:
        """Record what was sampled for a call; its text without the token that ended it."""
        conversation, sequence = self._open.pop(number)
        text = conversation.record(sampled_ids)
        tokens = self.sequences[sequence]
        tokens += sampled_ids
        self._answers[number] = _Answer(conversation=conversation, sequence=sequence, length=len(tokens))
        return text

    def conversation_of(self, number: int) -> Conversation:
        """The conversation of a call that waits for its answer."""
        return self._open[number][0]

    def sequence_of(self, number: int) -> int:
        """The sequence of a call that waits for its answer."""
        return self._open[number][1]

    def has_gone_on(self, number: int | None) -> bool:
        """Whether something follows the answer to this call in its sequence."""
        if number is None:
            return False
        answer = self._answers[number]
        return len(self.sequences[answer.sequence]) > answer.length

    def _begin(self, ids: Sequence[int]) -> Placed:
        self.sequences.append(list(ids))
        prompt = Prompt(ids=list(ids), restarts=len(self.sequences) > 1)
        return Placed(prompt=prompt, sequence=len(self.sequences) - 1, whole=self.sequences[-1])


class Renderers:
    """One renderer for each list of tools, made once for all episodes of an agent."""

    _MOST = 64

    def __init__(self, renderer: Renderer) -> None:
        self.plain = renderer
        self.roles = Roles.of(renderer)
        self._known: dict[str, Renderer | None] = {}

    def open(self, tools: Sequence[Mapping[str, Any]], *, native: bool = False) -> Conversation:
        """A new conversation about these tools; one that a program leads remembers its reasoning."""
        conversation = (self._showing(tools) or self.plain).open()
        if native and self.calls_as == "data" and self.shows(tools):
            return CallingConversation(renderer=conversation.renderer, messages=conversation.messages)
        conversation.remembers = not native
        return conversation

    @cached_property
    def calls_as(self) -> CallsAs:
        """How the template is told of calls."""
        return find_calls_as(self.plain)

    @cached_property
    def arguments_as(self) -> ArgumentsAs | None:
        """How the template wants the arguments of calls that it writes itself; None if it writes none."""
        return find_arguments_as(self.plain)

    def shows(self, tools: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the template shows these tools."""
        return self._showing(tools) is not None

    def fit_native(self, messages: Sequence[Mapping[str, Any]], *, opens: bool) -> list[dict[str, Any]]:
        """Messages with results of tools in their own role if the template knows it, otherwise as the user's."""
        if self.calls_as != "user":
            return replace(self.roles, tool=True).fit(messages, opens=opens)
        return self.roles.fit([_as_users(message) for message in messages], opens=opens)

    def introduce(
        self, tools: Sequence[Mapping[str, Any]], messages: Sequence[Mapping[str, Any]]
    ) -> Sequence[Mapping[str, Any]]:
        """The first messages; where the template shows no tools, the system message describes them."""
        if self._showing(tools) is not None:
            return messages
        has_system = bool(messages) and messages[0]["role"] == "system"
        said = str(messages[0]["content"]) if has_system else self.plain.system
        text = "\n\n".join(filter(None, [said, render_tools(_as_tools(tools), [JsonFormat()])]))
        return [{"role": "system", "content": text}, *messages[has_system:]]

    def _showing(self, tools: Sequence[Mapping[str, Any]]) -> Renderer | None:
        """The renderer that shows these tools; None if the template cannot."""
        if not tools:
            return self.plain
        key = json.dumps(tools, sort_keys=True, default=str)
        if key not in self._known:
            if len(self._known) >= self._MOST:
                self._known.clear()
            try:
                self._known[key] = self.plain.showing(tools)
            except ValueError:
                self._known[key] = None
        return self._known[key]


def _as_users(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if message["role"] != "tool":
        return message
    return {"role": "user", "content": f"<result>\n{message['content']}\n</result>"}


def _as_tools(rows: Iterable[Mapping[str, Any]]) -> list[Tool]:
    functions = [row.get("function", row) for row in rows]
    return [
        Tool(
            name=str(function.get("name", "")),
            description=str(function.get("description") or ""),
            parameters=function.get("parameters") or {},
            run=lambda _: "",
        )
        for function in functions
    ]
