"""A file of preferences: two answers to one prompt, of which one was preferred."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

from turnwise.policy.rendering import Renderer
from turnwise.sources.chats import finished, read_messages, shown_tools, turns_of
from turnwise.sources.lines import read_groups_of
from turnwise.types import Group, Trajectory

_FORM = '{"prompt": "...", "chosen": "...", "rejected": "..."}'
_REWARDS = {"chosen": 1.0, "rejected": 0.0}


def preference_groups(
    path: str | Path, renderer: Renderer, *, limit: int | None = None, room: int | None = None
) -> list[Group]:
    """A group of two trajectories for each line: first the chosen answer with reward 1, then the rejected one with 0.

    The prompt (or `messages`) is a text or a list of messages, and so is an answer. Without a prompt, both answers are
    whole chats, and what they have in common is the prompt. Only the answers are learnt from.
    """

    def read(row: Any) -> list[Trajectory]:
        prompt, answers = _read(row)
        shown = shown_tools(row, renderer)
        return [
            finished(turns_of(read_messages([*prompt, *answer]), shown, context=len(prompt)), reward=_REWARDS[name])
            for name, answer in answers.items()
        ]

    return read_groups_of(path, read, form=_FORM, key="the path in source.mix", limit=limit, room=room)


def _read(row: Any) -> tuple[list[Any], dict[str, list[Any]]]:
    """The messages of the prompt, and those of either answer."""
    if not isinstance(row, dict) or not row.keys() >= _REWARDS.keys():
        raise ValueError(f"chosen or rejected is missing; write {_FORM}")
    answers = {name: _messages(row[name], "assistant") for name in _REWARDS}
    prompt = _messages(row.get("prompt", row.get("messages")) or [], "user")
    if not prompt:
        both = zip(*answers.values(), strict=False)
        prompt = [first for first, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
        answers = {name: answer[len(prompt) :] for name, answer in answers.items()}
    if not prompt or not isinstance(prompt[-1], dict) or prompt[-1].get("role") != "user":
        raise ValueError(f"the prompt must end with a message of the user; write {_FORM}")
    if answers["chosen"] == answers["rejected"]:
        raise ValueError("chosen and rejected are equal, so there is nothing to prefer; remove the line")
    for name, answer in answers.items():
        if not answer or not isinstance(answer[0], dict) or answer[0].get("role") != "assistant":
            raise ValueError(f"{name} must begin with a message of the assistant, after the prompt")
    return prompt, answers


def _messages(value: Any, role: str) -> list[Any]:
    """A text is one message."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return value if isinstance(value, list) else [value]
