"""A file of chats as demonstrations: what the assistant says is learnt, everything else is what it was told."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from turnwise.policy.rendering import Conversation, Renderer
from turnwise.sources.chat_messages import ChatMessage, check_results, read_message
from turnwise.sources.demonstrations import end_turn, longest_sequence, spell
from turnwise.tools.formats import write_call
from turnwise.types import Group, StopReason, Trajectory, Turn
from turnwise.untrusted import parse_shallow
from turnwise.words import counted

_FORM = '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'
_SHOWN = 10
"""Bad lines that one error lists."""


def chat_groups(
    path: str | Path, renderer: Renderer, *, limit: int | None = None, room: int | None = None
) -> list[Group]:
    """The first `limit` chats of a JSONL file, one trajectory to a group, ready for `pack`.

    A chat's own system message takes the place of the renderer's. Where the template rewrites the history, a chat
    becomes several sequences. All bad lines are told at once, those with more than `room` tokens among them.
    """
    groups, problems = list[Group](), list[str]()
    for number, line in _lines(Path(path)):
        if limit is not None and len(groups) == limit:
            break
        try:
            messages, tools = _chat(line)
            turns = _turns(messages, renderer.showing(tools) if tools else renderer)
            _require_fits(turns, room)
        except (ValueError, TemplateError) as error:
            problems.append(f"{path}, line {number}: {_fixable(error)}")
        else:
            groups.append(_group(f"{Path(path).name}:{number}", turns))
    if problems:
        more = [f"and {counted(len(problems) - _SHOWN, 'more bad line')}"] if len(problems) > _SHOWN else []
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


def _chat(line: str) -> tuple[list[ChatMessage], list[dict[str, Any]]]:
    """The messages and tools of one line; raises ValueError with the fix."""
    chat = parse_shallow(json.loads, line)
    rows = chat.get("messages") if isinstance(chat, dict) else None
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"there is no list of messages; write {_FORM}")
    if chat.get("functions"):
        raise ValueError("'functions' is not read; write them as tools")
    tools = chat.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError(
            'tools is not a list of objects; write [{"type": "function", "function": {...}}], or remove it'
        )
    messages = [read_message(place, row) for place, row in enumerate(rows)]
    _check_order([message.role for message in messages])
    check_results(messages)
    return messages, tools


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


def _turns(messages: list[ChatMessage], renderer: Renderer) -> list[Turn]:
    """One turn for each message of the assistant; what comes after the last of them is left out."""
    conversation, turns = renderer.open(), list[Turn]()
    if messages[0].role == "system":
        conversation.messages = [_shielded(messages[0], renderer)]
    waiting = list[ChatMessage]()
    for message in messages:
        if message.role in ("user", "tool"):
            waiting.append(message)
        elif message.role == "assistant":
            *earlier, last = waiting
            conversation.messages += [_shielded(one, renderer) for one in earlier]
            conversation.renderer = _observing_as(last.role, renderer)
            turns.append(_turn(conversation, last, message))
            waiting.clear()
    return turns


def _turn(conversation: Conversation, observed: ChatMessage, said: ChatMessage) -> Turn:
    prompt = conversation.observe(observed.content, observed.fields)
    sampled_ids = _spoken_ids(conversation, said)
    action = conversation.record(sampled_ids)
    return Turn(
        observation=observed.content,
        action=action,
        prompt_ids=prompt.ids,
        restarts=prompt.restarts,
        sampled_ids=sampled_ids,
    )


def _spoken_ids(conversation: Conversation, said: ChatMessage) -> list[int]:
    """The tokens of what the assistant says; calls of tools in the template's own form if it has one, else in ours."""
    renderer = conversation.renderer
    if not said.calls:
        return spell(renderer, said.content)
    for as_text in (False, True):  # templates differ in how they want a call's arguments
        reply = renderer.shield_all(_reply(said, arguments_as_text=as_text))
        if written := _written_by_template(conversation, reply):
            return end_turn(renderer, written)
    calls = "\n".join(map(write_call, said.calls))
    return spell(renderer, f"{said.content}\n{calls}" if said.content else calls)


def _reply(said: ChatMessage, *, arguments_as_text: bool) -> dict[str, Any]:
    """The message as templates know it."""
    calls = list[dict[str, Any]]()
    for number, call in enumerate(said.calls):
        arguments = dict(call.arguments)
        written = json.dumps(arguments, ensure_ascii=False) if arguments_as_text else arguments
        call_id = said.call_ids[number] if number < len(said.call_ids) else str(number)
        calls.append({"id": call_id, "type": "function", "function": {"name": call.name, "arguments": written}})
    return {"role": "assistant", "content": said.content, "tool_calls": calls}


def _written_by_template(conversation: Conversation, reply: dict[str, Any]) -> str:
    """What the template writes for a reply, up to the end token; nothing where it leaves out a call or other words."""
    renderer, calls = conversation.renderer, reply["tool_calls"]
    results = [
        {"role": "tool", "content": "?", "name": call["function"]["name"], "tool_call_id": call["id"]} for call in calls
    ]
    try:
        before = renderer.render(conversation.messages).removesuffix(renderer.opening)
        # Results follow, because some templates treat the last message in a way of its own.
        whole = renderer.render([*conversation.messages, reply, *results])
    except (TemplateError, TypeError):  # TypeError: a template that adds texts to what is not one
        return ""
    if not renderer.end_text or not whole.startswith(before):
        return ""
    written = whole.removeprefix(before).partition(renderer.end_text)[0]
    words = [reply["content"].strip(), *(call["function"]["name"] for call in calls)]
    return written if all(word in written for word in words) else ""


def _require_fits(turns: list[Turn], room: int | None) -> None:
    longest = longest_sequence(turns)
    if room is not None and longest > room:
        raise ValueError(f"it has {longest} tokens but the model has room for {room}; shorten it or remove it")


def _observing_as(role: str, renderer: Renderer) -> Renderer:
    """The same renderer for observations in another role; statistics stay common."""
    other = copy.copy(renderer)
    other.observation_role = role
    return other


def _shielded(message: ChatMessage, renderer: Renderer) -> dict[str, str]:
    return {"role": message.role, "content": renderer.shield(message.content), **renderer.shield_all(message.fields)}


def _group(name: str, turns: list[Turn]) -> Group:
    return Group(id=name, trajectories=[Trajectory(id=name, turns=turns, stop=StopReason.DONE, terminated=True)])


def _fixable(error: ValueError | TemplateError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON ({error.msg} at column {error.colno}); write {_FORM}"
    if isinstance(error, TemplateError):
        return f"the chat template refuses it ({error}); leave that role out, or set model.template"
    return str(error)
