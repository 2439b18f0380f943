"""A file of chats as demonstrations: what the assistant says is learnt, everything else is what it was told."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from turnwise.policy.rendering import Renderer
from turnwise.train.demonstrations import add_tokens
from turnwise.types import Group, Message, StopReason, Trajectory, Turn

_ROLES = ("system", "user", "tool", "assistant")
_FORM = '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'
_SHOWN = 10
"""Bad lines that one error lists."""


def chat_groups(path: str | Path, renderer: Renderer, *, limit: int | None = None) -> list[Group]:
    """The first `limit` chats of a JSONL file, one trajectory to a group, ready for `pack`.

    A chat's own system message takes the place of the renderer's. Where the template rewrites the history, a chat
    becomes several sequences. All bad lines are told at once.
    """
    groups, problems = list[Group](), list[str]()
    for number, line in _lines(Path(path)):
        if limit is not None and len(groups) == limit:
            break
        try:
            turns = _turns(_messages(line), renderer)
        except (ValueError, TemplateError) as error:
            problems.append(f"{path}, line {number}: {_fixable(error)}")
        else:
            groups.append(_group(f"{Path(path).name}:{number}", turns))
    if problems:
        more = [f"and {len(problems) - _SHOWN} more bad lines"] if len(problems) > _SHOWN else []
        raise ValueError("\n".join([*problems[:_SHOWN], *more]))
    if not groups:
        raise ValueError(f"{path} has no chats; write one to a line, as {_FORM}")
    return groups


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); convert it to UTF-8") from error
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror}); set sft.chats to a JSONL file of chats") from error
    # Not splitlines: a JSON string may contain line separators of Unicode.
    return ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())


def _messages(line: str) -> list[Message]:
    """The messages of one line; raises ValueError with the fix."""
    chat = json.loads(line)
    rows = chat.get("messages") if isinstance(chat, dict) else None
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"there is no list of messages; write {_FORM}")
    messages = [_message(place, row) for place, row in enumerate(rows)]
    _check_order([message.role for message in messages])
    return messages


def _message(place: int, row: Any) -> Message:
    if not isinstance(row, dict) or not {"role", "content"} <= row.keys():
        raise ValueError(f'message {place} is no message; write {{"role": "user", "content": "..."}}')
    role, content = row["role"], row["content"]
    if role not in _ROLES:
        raise ValueError(f"message {place} has the unknown role {role!r}; use one of {', '.join(_ROLES)}")
    if not isinstance(content, str):
        raise ValueError(
            f"message {place} has content of type {type(content).__name__}; write it as one text, with tool calls in "
            "the words in which the model should make them"
        )
    if any("\ud800" <= letter <= "\udfff" for letter in content):
        raise ValueError(f"message {place} has half of a surrogate pair, which is no text; write the file as UTF-8")
    if role == "assistant" and not content:
        raise ValueError(f"message {place} of the assistant is empty; fill it in or remove it")
    return Message(role=role, content=content)


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


def _turns(messages: list[Message], renderer: Renderer) -> list[Turn]:
    """One turn for each message of the assistant; what comes after the last of them is left out."""
    conversation, turns = renderer.open(), list[Turn]()
    if messages[0].role == "system":
        conversation.messages = [_shielded(messages[0], renderer)]
    waiting = list[Message]()
    for message in messages:
        if message.role in ("user", "tool"):
            waiting.append(message)
        elif message.role == "assistant":
            *earlier, last = waiting
            conversation.messages += [_shielded(one, renderer) for one in earlier]
            conversation.renderer = _observing_as(last.role, renderer)
            turn = Turn(observation=last.content, action=message.content)
            add_tokens(turn, conversation)
            turns.append(turn)
            waiting.clear()
    return turns


def _observing_as(role: str, renderer: Renderer) -> Renderer:
    """The same renderer for observations in another role; statistics stay common."""
    other = copy.copy(renderer)
    other.observation_role = role
    return other


def _shielded(message: Message, renderer: Renderer) -> dict[str, str]:
    return {"role": message.role, "content": renderer.shield(message.content)}


def _group(name: str, turns: list[Turn]) -> Group:
    return Group(id=name, trajectories=[Trajectory(id=name, turns=turns, stop=StopReason.DONE, terminated=True)])


def _fixable(error: ValueError | TemplateError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON ({error.msg} at column {error.colno}); write {_FORM}"
    if isinstance(error, TemplateError):
        return f"the chat template refuses it ({error}); leave that role out, or set model.template"
    return str(error)
