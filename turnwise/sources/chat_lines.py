"""One line of a chat file, in any of the usual forms: messages, ShareGPT's conversations, or prompt and completion."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from turnwise.dialects.chat_messages import ChatMessage, check_results, read_message
from turnwise.untrusted import parse_shallow

FORM = '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'
_PAIR_FORM = '{"prompt": "...", "completion": "..."}'
_SHARED_FORM = '{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}'
_FORMS = f"{FORM}, {_PAIR_FORM} or {_SHARED_FORM}"
_CALL = "function_call"
_SPEAKERS = {
    "system": "system",
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "model", _CALL), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
}
"""Roles by the names of speakers in ShareGPT's form."""


@dataclass(frozen=True, kw_only=True)
class ChatLine:
    """A chat of which the assistant's messages after the first `context` ones are learned."""

    messages: list[ChatMessage]
    context: int = 0
    """Messages that are only read: the prompt of a completion."""
    tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def prompt(self) -> list[dict[str, str]]:
        """What comes before the first message that is learned."""
        said = (place for place, each in enumerate(self.messages) if each.role == "assistant" and place >= self.context)
        return [{"role": each.role, "content": each.content} for each in self.messages[: next(said)]]


def read_chat(row: Any) -> ChatLine:
    """The chat of a line, whichever form it has; raises ValueError with the fix."""
    row = row if isinstance(row, dict) else {}
    said = [key for key in ("messages", "conversations", "completion") if row.get(key) is not None]
    if len(said) > 1:
        raise ValueError(f"it has {' and '.join(said)}; keep one of them")
    tools = read_tools(row)
    if said == ["completion"]:
        prompt, completion = _completed(row)
        return ChatLine(messages=read_messages([*prompt, *completion]), context=len(prompt), tools=tools)
    if said == ["conversations"]:
        return ChatLine(messages=read_messages(_shared(row)), tools=tools)
    if not said and "messages" not in row:
        missing = "completion" if row.get("prompt") is not None else "list of messages"
        raise ValueError(f"there is no {missing}; write {_FORMS}")
    return ChatLine(messages=read_messages(row["messages"]), tools=tools)


def read_messages(rows: Any) -> list[ChatMessage]:
    """A checked list of messages; raises ValueError with the fix."""
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"there is no list of messages; write {FORM}")
    messages = [read_message(place, row) for place, row in enumerate(rows)]
    _check_order([message.role for message in messages])
    check_results(messages)
    return messages


def read_tools(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The tools of a line, if it has some."""
    if row.get("functions"):
        raise ValueError("'functions' is not read; write them as tools")
    tools = row.get("tools") or []
    if isinstance(tools, str):  # some files write them as JSON
        with suppress(ValueError):
            tools = parse_shallow(json.loads, tools)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError(
            'tools is not a list of objects; write [{"type": "function", "function": {...}}], or remove it'
        )
    return tools


def as_messages(name: str, value: Any, role: str) -> list[Any]:
    """Messages as they are; a text is one message of this role."""
    if isinstance(value, str):
        return [{"role": role, "content": value if value.strip() else ""}]
    if isinstance(value, dict):
        return [value]
    if not isinstance(value, list):
        kind = "null" if value is None else f"of type {type(value).__name__}"
        raise ValueError(f"{name} is {kind}; write a text, or a list of messages")
    return value


def _completed(row: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    prompt = as_messages("prompt", row.get("prompt"), "user")
    completion = as_messages("completion", row["completion"], "assistant")
    if not completion or completion == [{"role": "assistant", "content": ""}]:
        raise ValueError("the completion is empty; fill it in, or remove the line")
    if not isinstance(completion[0], dict) or completion[0].get("role") != "assistant":
        raise ValueError(f"the completion must begin with a message of the assistant; write {_PAIR_FORM}")
    return prompt, completion


def _shared(row: dict[str, Any]) -> list[Any]:
    """The messages of ShareGPT's form; some files put the system message beside them."""
    rows = row["conversations"]
    if not isinstance(rows, list):
        raise ValueError(f"conversations is not a list; write {_SHARED_FORM}")
    system = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    return [*system, *(_spoken(place, each) for place, each in enumerate(rows))]


def _spoken(place: int, row: Any) -> Any:
    if not isinstance(row, dict) or not {"from", "value"} <= row.keys():
        if isinstance(row, dict) and "role" in row:
            return row
        raise ValueError(f"message {place} has no 'from' or no 'value'; write {_SHARED_FORM}")
    speaker, rest = row["from"], {key: value for key, value in row.items() if key not in ("from", "value")}
    if speaker not in _SPEAKERS:
        raise ValueError(f"message {place} is from {speaker!r}; use one of {', '.join(_SPEAKERS)}")
    if speaker == _CALL:
        return {**rest, "role": "assistant", "content": None, "tool_calls": _calls(place, row["value"])}
    return {**rest, "role": _SPEAKERS[speaker], "content": row["value"]}


def _calls(place: int, text: Any) -> list[Any]:
    try:
        call = parse_shallow(json.loads, text)
    except (TypeError, ValueError):
        raise ValueError(
            f"message {place} calls a tool, but not as JSON; write it as JSON, or remove the line"
        ) from None
    return call if isinstance(call, list) else [call]


def _check_order(roles: list[str]) -> None:
    if "assistant" not in roles:
        raise ValueError(
            "the assistant says nothing, so there is nothing to learn; add its messages or remove the line"
        )
    for place, (before, role) in enumerate(pairwise(["", *roles])):
        if role == "system" and before:
            raise ValueError(f"message {place} is a system message; it may only come first: make it the user's")
        if role == "tool" and before in ("", "system", "user"):
            raise ValueError(f"message {place} is a tool's, but the assistant has not called one; make it the user's")
        if role == "assistant" and before == "assistant":
            raise ValueError(f"message {place} follows another one of the assistant; join the two")
        if role == "assistant" and before in ("", "system"):
            raise ValueError(f"message {place} of the assistant comes first; put a message of the user before it")
