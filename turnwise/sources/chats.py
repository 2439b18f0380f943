"""A file of chats as demonstrations: the assistant's messages are learned, the rest is context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turnwise.policy.rendering import Renderer
from turnwise.sources.chat_lengths import Lengths
from turnwise.sources.chat_lines import FORM, read_chat
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
) -> list[Group]:
    """The first `limit` chats of a JSONL file, one trajectory to a group, ready for `pack`.

    A chat's own system message replaces the renderer's. If the template rewrites the history, a chat becomes several
    sequences. One error lists all bad lines. Chats with more than `room` tokens are bad too, or as `lengths` says.
    """
    lengths = lengths or Lengths(room=room)

    def read(row: Any) -> list[Trajectory]:
        line = read_chat(row)
        turns = lengths.fit(line, renderer.showing(line.tools) if line.tools else renderer)
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
    return groups
