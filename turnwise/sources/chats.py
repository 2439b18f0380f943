"""A file of chats as demonstrations: the assistant's messages are learned, the rest is context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnwise.dialects.chat_messages import ChatMessage
from turnwise.policy.rendering import Renderer
from turnwise.rollout.call_branches import NO_TOOLS, Renderers
from turnwise.sources.chat_lengths import Lengths
from turnwise.sources.chat_lines import FORM, ChatLine, read_chat
from turnwise.sources.chat_turns import finished
from turnwise.sources.lines import read_groups_of
from turnwise.types import Group, Trajectory


def chat_groups(
    path: str | Path,
    renderer: Renderer,
    *,
    limit: int | None = None,
    room: int | None = None,
    lengths: Lengths | None = None,
    note: Callable[[str], None] | None = None,
) -> list[Group]:
    """The first `limit` chats of a JSONL file, one trajectory to a group, ready for `pack`.

    A chat's own system message replaces the renderer's. If the template rewrites the history, a chat becomes several
    sequences. One error lists all bad lines. Chats with more than `room` tokens are bad too, or as `lengths` says.
    `note` is told if the template shows no tools, and the system message describes them instead.
    """
    lengths, renderers, described = lengths or Lengths(room=room), Renderers(renderer), list[str]()

    def read(row: Any) -> list[Trajectory]:
        line = read_chat(row)
        if line.tools and not renderers.shows(line.tools):
            described.append(NO_TOOLS)
            line = _introduced(line, renderers)
        turns = lengths.fit(line, renderers.open(line.tools).renderer)
        if not turns:
            return []
        trajectory = finished(turns)
        trajectory.task = line.prompt
        return [trajectory]

    groups = read_groups_of(path, read, form=FORM, key="sft.chats", limit=limit, room=lengths.room)
    if not groups:
        raise ValueError(
            f"all of the {lengths.rows} rows of {path} have more than {lengths.room} tokens; raise sft.context, or "
            "set sft.too_long=cut-left"
        )
    if described and note is not None:
        note(f"{path}: {described[0]}")
    return groups


def _introduced(line: ChatLine, renderers: Renderers) -> ChatLine:
    """The chat with its tools in the system message, or, where the template has none, in the user's first."""
    has_system = line.messages[0].role == "system"
    given = [{"role": "system", "content": line.messages[0].content}] if has_system else []
    text = str(renderers.introduce(line.tools, given)[0]["content"])
    rest = line.messages[has_system:]
    if renderers.roles.system:
        messages = [ChatMessage(role="system", content=text), *rest]
    else:
        messages = [replace(rest[0], content=f"{text}\n\n{rest[0].content}"), *rest[1:]]
    context = line.context + len(messages) - len(line.messages) if line.context else 0
    return replace(line, messages=messages, context=context)
