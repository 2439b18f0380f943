"""The canonical form of what a client asks and what it is answered, and what a wire format must offer."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from turnwise.tools.formats import ToolCall

Finished = Literal["stop", "length", "tool_calls"]
"""Why an answer ended, in the words of OpenAI's chat format."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """One message, whatever the dialect: `Said(role="user", text="where is mahis ?")`."""

    role: str
    """system, user, assistant or tool."""
    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_ids: tuple[str, ...] = ()
    """The ids of the calls, as far as the client gave them."""
    call_id: str = ""
    """The call that a tool's message answers."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a client asks for. None: it leaves the choice to the server."""

    model: str
    messages: tuple[Said, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """In OpenAI's form: `{"type": "function", "function": {"name": ..., "parameters": ...}}`."""
    tool_choice: str = "auto"
    """auto, none, required, or the name of a tool."""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    n: int = 1
    stream: bool = False
    stream_usage: bool = False
    """Whether a stream of the chat format ends with the usage; the other formats always send it."""
    logprobs: int | None = None
    """None: none. Otherwise those of the sampled tokens and of this many alternatives."""
    return_token_ids: bool = False
    prompts: tuple[str | tuple[int, ...], ...] = ()
    """In place of messages: texts or tokens that are continued as they are, `n` times each."""
    unmet: tuple[str, ...] = ()
    """What was asked for and no model here can do: a server refuses it, a recorder notes it."""
    unknown: tuple[str, ...] = ()
    """Fields that the format does not have, such as a misspelt `temprature`."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A token with its log-prob, and the likeliest tokens in its place."""

    id: int
    text: str
    logprob: float
    raw: bytes = b""
    """Its bytes, which may be a part of a character."""
    top: tuple[Scored, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A whole answer."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: Finished = "stop"
    stopped_by: str = ""
    """The stop string of the client that ended it, if one did."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt: tokens that were not run again."""
    completion_tokens: int = 0
    ids: tuple[int, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    logprobs: tuple[Scored, ...] = ()


class StreamWriter(Protocol):
    """Writes one answer as server-sent events. A whole answer is replayed by `begin() + end(answered)`."""

    def begin(self) -> str:
        """What comes before the first token."""
        ...

    def delta(
        self,
        text: str = "",
        *,
        reasoning: str = "",
        choice: int = 0,
        ids: Sequence[int] = (),
        logprobs: Sequence[Scored] = (),
    ) -> str:
        """The next part of an answer's text or reasoning, with the tokens sampled since the last part."""
        ...

    def end(self, *answers: Answered) -> str:
        """What no delta has sent yet (tool calls are always sent whole), why it ended, and the usage."""
        ...

    def fail(self, status: int, message: str) -> str:
        """The stream ends here because something broke."""
        ...


class Dialect(Protocol):
    """A wire format."""

    path: str
    """The route that clients post to."""

    def read(self, body: Mapping[str, Any]) -> Asked:
        """What a request asks; ValueError with the fix."""
        ...

    def write(self, asked: Asked, *answers: Answered, id: str, created: int) -> dict[str, Any]:
        """The body of a whole answer; more than one answer if `asked.n` is more than one."""
        ...

    def stream(self, asked: Asked, *, id: str, created: int) -> StreamWriter:
        """A writer for a streamed answer."""
        ...

    def problem(self, status: int, message: str, code: str = "") -> dict[str, Any]:
        """The body of an error; `code` is a name that programs look for, such as context_length_exceeded."""
        ...


KEEP_ALIVE = ": keep-alive\n\n"
"""A comment that every client of server-sent events skips, while there is nothing to send."""


def canonical(message: Said) -> Hashable:
    """What stays of a message when a client echoes it: equal values are equal messages.

    Clients write arguments anew (order of keys, 1.0 as 1), trim outer blanks, and drop reasoning and ids of calls.
    """
    calls = tuple((call.name, json.dumps(_plain(call.arguments), sort_keys=True)) for call in message.calls)
    return message.role, message.text.strip(), calls


def _plain(value: Any) -> Any:
    """The value with whole numbers as integers, as JavaScript writes them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
