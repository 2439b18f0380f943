"""A file of chats as demonstrations: the assistant's messages are learned, the rest is context."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from turnwise.dialects.chat_messages import ChatMessage, check_results, read_message
from turnwise.policy.rendering import Conversation, Renderer
from turnwise.rollout.call_branches import NO_TOOLS, Renderers
from turnwise.rollout.calling_conversation import CallingConversation, call_message, find_calls_as, tell_template
from turnwise.sources.demonstrations import end_turn, spell
from turnwise.sources.lines import read_groups_of
from turnwise.tools.formats import write_call
from turnwise.tools.native_calls import call_id
from turnwise.types import Group, StopReason, Trajectory, Turn

_FORM = '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'


def chat_groups(
    path: str | Path,
    renderer: Renderer,
    *,
    limit: int | None = None,
    room: int | None = None,
    note: Callable[[str], None] | None = None,
) -> list[Group]:
    """The first `limit` chats of a JSONL file, one trajectory to a group, ready for `pack`.

    A chat's own system message replaces the renderer's. If the template rewrites the history, a chat becomes several
    sequences. One error lists all bad lines, including those with more than `room` tokens. `note` is told if the
    template shows no tools, and the system message describes them instead.
    """
    renderers, described = Renderers(renderer), list[str]()

    def read(row: Any) -> list[Trajectory]:
        messages = read_messages(row.get("messages") if isinstance(row, dict) else None)
        tools = read_tools(row)
        if tools and not renderers.shows(tools):
            described.append(NO_TOOLS)
            messages = _introduced(messages, tools, renderers)
        return [finished(turns_of(messages, renderers.open(tools).renderer))]

    groups = read_groups_of(path, read, form=_FORM, key="sft.chats", limit=limit, room=room)
    if described and note is not None:
        note(f"{path}: {described[0]}")
    return groups


def _introduced(messages: list[ChatMessage], tools: list[dict[str, Any]], renderers: Renderers) -> list[ChatMessage]:
    """The chat with its tools in the system message, or, where the template has none, in the user's first."""
    has_system = messages[0].role == "system"
    given = [{"role": "system", "content": messages[0].content}] if has_system else []
    text = str(renderers.introduce(tools, given)[0]["content"])
    rest = messages[has_system:]
    if renderers.roles.system:
        return [ChatMessage(role="system", content=text), *rest]
    return [replace(rest[0], content=f"{text}\n\n{rest[0].content}"), *rest[1:]]


def read_messages(rows: Any) -> list[ChatMessage]:
    """A checked list of messages; raises ValueError with the fix."""
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"there is no list of messages; write {_FORM}")
    messages = [read_message(place, row) for place, row in enumerate(rows)]
    _check_order([message.role for message in messages])
    check_results(messages)
    return messages


def read_tools(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The tools of a line, if it has some."""
    if row.get("functions"):
        raise ValueError("'functions' is not read; write them as tools")
    tools = row.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError(
            'tools is not a list of objects; write [{"type": "function", "function": {...}}], or remove it'
        )
    return tools


def finished(turns: list[Turn], *, reward: float | None = None) -> Trajectory:
    """The messages as a whole episode; a reward belongs to its last turn."""
    if reward is not None:
        turns[-1].reward = reward
    return Trajectory(id="", turns=turns, stop=StopReason.DONE, terminated=True)


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


def prompt_messages(messages: list[ChatMessage], renderer: Renderer) -> list[dict[str, Any]]:
    """What the template is shown of messages that the assistant answers next."""
    system = [] if messages[0].role == "system" else renderer.open().messages
    return [*system, *(_shielded(message, renderer) for message in messages)]


def turns_of(messages: list[ChatMessage], renderer: Renderer, *, context: int = 0) -> list[Turn]:
    """One turn for each message of the assistant after the first `context` messages, which are only read.

    What comes after the last of them is left out.
    """
    conversation, turns = renderer.open(), list[Turn]()
    if any(message.calls for message in messages) and find_calls_as(renderer) == "data":
        conversation = CallingConversation(renderer=renderer, messages=conversation.messages)
        messages = _renumbered(messages)
    if messages[0].role == "system":
        conversation.messages = [_shielded(messages[0], renderer)]
    waiting = list[ChatMessage]()
    for place, message in enumerate(messages):
        if message.role in ("user", "tool"):
            waiting.append(message)
        elif message.role == "assistant" and place < context:
            conversation.messages += [_shielded(one, renderer) for one in (*waiting, message)]
            waiting.clear()
        elif message.role == "assistant":
            *earlier, last = waiting
            conversation.messages += [_shielded(one, renderer) for one in earlier]
            conversation.renderer = _observing_as(last.role, renderer)
            turns.append(_turn(conversation, last, message))
            waiting.clear()
    return turns


def _renumbered(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The same calls with ids that every template accepts; results without an id answer the calls in order."""
    known, waiting, made, chat = dict[str, str](), list[str](), 0, list[ChatMessage]()
    for message in messages:
        if message.calls:
            waiting = [call_id(made + number) for number in range(len(message.calls))]
            known = dict(zip(message.call_ids, waiting, strict=False))
            made, message = made + len(waiting), replace(message, call_ids=tuple(waiting))
        elif message.role == "tool" and waiting:
            answered = known.get(message.fields.get("tool_call_id", ""), waiting[0])
            waiting = [each for each in waiting if each != answered] or [answered]
            message = replace(message, fields={**message.fields, "tool_call_id": answered})
        chat.append(message)
    return chat


def _turn(conversation: Conversation, observed: ChatMessage, said: ChatMessage) -> Turn:
    prompt = conversation.observe(observed.content, observed.fields)
    sampled_ids = _spoken_ids(conversation, said)
    if isinstance(conversation, CallingConversation):
        action = conversation.record_calls(sampled_ids, said.content, said.calls, said.call_ids)
    else:
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
    told = tell_template(renderer, conversation.messages, said.content, said.calls, said.call_ids)
    if told is not None:
        return end_turn(renderer, told[1])
    calls = "\n".join(map(write_call, said.calls))
    return spell(renderer, f"{said.content}\n{calls}" if said.content else calls)


def _observing_as(role: str, renderer: Renderer) -> Renderer:
    """The same renderer for observations in another role; statistics stay common."""
    if renderer.observation_role == role:
        return renderer
    other = copy.copy(renderer)
    other.observation_role = role
    return other


def _shielded(message: ChatMessage, renderer: Renderer) -> dict[str, Any]:
    if message.calls:
        return renderer.shield_all(call_message(message.content, message.calls, message.call_ids))
    return {"role": message.role, "content": renderer.shield(message.content), **renderer.shield_all(message.fields)}
