"""A file of preferences: pairs, rankings or scored answers to one prompt, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnwise.policy.rendering import Renderer
from turnwise.policy.rendering_ahead import AheadRenderer
from turnwise.sources.chat_turns import finished, prompt_messages, turns_of
from turnwise.sources.compared_answers import FORM, ComparedAnswers, read_comparison
from turnwise.sources.judged import note_wins
from turnwise.sources.lines import read_groups_of
from turnwise.types import Group, Trajectory

_KEY = "the path in source.mix"


def preference_groups(
    path: str | Path, renderer: Renderer, *, limit: int | None = None, room: int | None = None
) -> list[Group]:
    """A group for each line of a JSONL file, its answers in the file's order. Only the answers are learnt from.

    {"prompt": ..., "chosen": ..., "rejected": ...}          rewards 1 and 0; "probability" that chosen wins is optional
    {"prompt": ..., "ranked": [best, ..., worst]}            rewards from 1 to 0 in equal steps
    {"prompt": ..., "answers": [{"content": ..., "score": 0.5}, ...]}    the scores are the rewards

    The prompt (or `messages`) is a text or a list of messages, and so is an answer, which may have several turns.
    Without a prompt, all answers are whole chats, and what they have in common is the prompt.
    """
    ahead = AheadRenderer.of(renderer)

    def prepare(rows: Sequence[Any]) -> list[ComparedAnswers | ValueError]:
        lines = [_readable(row) for row in rows]
        sound = [line for line in lines if isinstance(line, ComparedAnswers) and not line.tools]
        replies = [said.content for line in sound for answer in line.answers for said in answer]
        ahead.prepare([prompt_messages(line.prompt, ahead) for line in sound], replies)
        return lines

    def read(line: ComparedAnswers) -> list[Trajectory]:
        shown = ahead.showing(line.tools) if line.tools else ahead
        return [_trajectory(line, place, shown) for place in range(len(line.answers))]

    groups = read_groups_of(path, read, prepare=prepare, form=FORM, key=_KEY, limit=limit, room=room)
    for group in groups:
        for place, trajectory in enumerate(group.trajectories):
            if "beats" in trajectory.info:  # a pair: its own probability is not diluted by a tie with itself
                beats = trajectory.info["beats"]
                note_wins(trajectory, beats, group.trajectories, chance=beats[1 - place])
    return groups


def _readable(row: Any) -> ComparedAnswers | ValueError:
    """The line, or what is wrong with it."""
    try:
        return row if isinstance(row, ValueError) else read_comparison(row)
    except ValueError as error:
        return error


def _trajectory(line: ComparedAnswers, place: int, renderer: Renderer) -> Trajectory:
    messages = [*line.prompt, *line.answers[place]]
    trajectory = finished(turns_of(messages, renderer, context=len(line.prompt)), reward=line.rewards[place])
    trajectory.task = [{"role": message.role, "content": message.content} for message in line.prompt]
    if line.wins is not None:
        trajectory.info = {"beats": line.wins[place]}
    return trajectory
