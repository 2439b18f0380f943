"""One message in the form that OpenAI-style interfaces write, in a file or a request: checked, with nothing lost."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from turnwise.tools.formats import CallError, ToolCall, read_call

_ROLES = ("system", "user", "tool", "assistant")
_FORM = '{"role": "user", "content": "..."}'
_CALL_FORM = '{"id": "1", "type": "function", "function": {"name": "search", "arguments": {"query": "..."}}}'
_AS_TEXT = "write it as text, or leave the chat out"
_HALF = re.compile("[\ud800-\udfff]")
_PASSED_ON = ("name", "tool_call_id")
_UNREAD = {
    "function_call": "write it as tool_calls",
    "reasoning_content": "write it into the content, as the model should say it: <think>...</think>",
    "reasoning": "write it into the content, as the model should say it: <think>...</think>",
    "thinking": "write it into the content, as the model should say it: <think>...</think>",
    "refusal": "write it as the content",
    "weight": "remove it, and the chats that should not be learnt from",
    "audio": "only text can be learnt from: remove the chat",
    "images": "only text can be learnt from: remove the chat",
}
"""Meaningful fields that are not read, and what to do instead."""


@dataclass(frozen=True, kw_only=True)
class ChatMessage:
    """What one line of a chat says: `ChatMessage(role="user", content="where is mahis ?")`."""

    role: str
    content: str
    calls: tuple[ToolCall, ...] = ()
    call_ids: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    """What a template may want to know of it: a `name`, a `tool_call_id`."""


def read_message(place: int, row: Any) -> ChatMessage:
    """The message at this place of a chat; raises ValueError with the fix."""
    if not isinstance(row, dict) or "role" not in row or not {"content", "tool_calls"} & row.keys():
        raise ValueError(f"message {place} is not a message; write {_FORM}")
    role = row["role"]
    if role not in _ROLES:
        raise ValueError(f"message {place} has the unknown role {role!r}; use one of {', '.join(_ROLES)}")
    for name in [name for name in row if name in _UNREAD and row[name] not in (None, [], {})]:
        raise ValueError(f"message {place} has {name!r}, which is not read; {_UNREAD[name]}")
    calls, call_ids = _calls(place, role, row.get("tool_calls"))
    content = join_text(place, row.get("content"), may_lack=bool(calls))
    if role == "assistant" and not content and not calls:
        raise ValueError(f"message {place} of the assistant is empty; fill it in or remove it")
    fields = {name: _field(place, name, row[name]) for name in _PASSED_ON if row.get(name) is not None}
    return ChatMessage(role=role, content=content, calls=calls, call_ids=call_ids, fields=fields)


def check_results(messages: list[ChatMessage]) -> None:
    """Raise ValueError when a tool's message answers a call that was not made."""
    made: tuple[str, ...] = ()
    for place, message in enumerate(messages):
        if message.role == "assistant":
            made = message.call_ids
        answered = message.fields.get("tool_call_id") if message.role == "tool" else None
        if made and answered is not None and answered not in made:
            raise ValueError(
                f"message {place} answers the call {answered!r}, but the assistant made {', '.join(made)}; "
                "use the id of the call"
            )


def join_text(place: int, content: Any, *, may_lack: bool, kinds: Collection[str] = ("text",)) -> str:
    """The content of a message as one text; parts of these kinds are joined, others are an error."""
    if content is None:
        if may_lack:
            return ""
        raise ValueError(f"message {place} has no content; write a text, or tool_calls if the assistant calls tools")
    if isinstance(content, str):
        return _whole(place, content)
    if not isinstance(content, list):
        raise ValueError(f"message {place} has content of type {type(content).__name__}; {_AS_TEXT}")
    return _whole(place, "".join(_part(place, part, kinds) for part in content))


def _part(place: int, part: Any, kinds: Collection[str]) -> str:
    kind = part.get("type") if isinstance(part, dict) else f"{type(part).__name__} inside a list"
    if kind not in kinds or not isinstance(part.get("text"), str):
        raise ValueError(f"message {place} has content of type {kind}; {_AS_TEXT}")
    return part["text"]


def _field(place: int, name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"message {place} has a {name} of type {type(value).__name__}; write it as a text")
    return _whole(place, value)


def _whole(place: int, text: str) -> str:
    if not text.isascii() and _HALF.search(text):
        raise ValueError(f"message {place} has half of a surrogate pair, which is not text; write the file as UTF-8")
    return text


def _calls(place: int, role: str, rows: Any) -> tuple[tuple[ToolCall, ...], tuple[str, ...]]:
    """The calls of a message and their ids; a message without calls may say null or [] instead."""
    if rows in (None, []):
        return (), ()
    if role != "assistant":
        raise ValueError(f"message {place} of the {role} has tool_calls; only the assistant calls tools")
    if not isinstance(rows, list):
        raise ValueError(f"message {place} has tool_calls of type {type(rows).__name__}; write a list of {_CALL_FORM}")
    calls = tuple(_call(place, row) for row in rows)
    return calls, tuple(row["id"] for row in rows if isinstance(row.get("id"), str))


def _call(place: int, row: Any) -> ToolCall:
    read = read_call(row) if isinstance(row, dict) else CallError(message="a call is an object")
    if isinstance(read, CallError):
        raise ValueError(f"message {place} has a tool call that cannot be read ({read.message}); write {_CALL_FORM}")
    _whole(place, json.dumps([read.name, dict(read.arguments)], ensure_ascii=False))
    return read
