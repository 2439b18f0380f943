"""Prompts from a JSONL file: `{"prompt": text or messages, "reference": text, "followups": [text, ...]}` on each line.

Only the prompt is required. `answer` and `chosen` are other names of `reference`, so files of questions and of
preference pairs work unchanged; fields with other names reach the scoring function.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from turnwise.envs.tasks.answers import split_of
from turnwise.words import counted

_REFERENCES = ("reference", "answer", "chosen")
_ROLES = ("system", "user", "assistant")
_SHOWN = 5
"""Bad lines that an error names."""
_FORM = '{"prompt": "...", "reference": "..."}'


@dataclass(frozen=True, kw_only=True)
class PromptLine:
    """One line of a file."""

    text: str
    """What the policy reads first."""
    reference: str = ""
    """A good answer; empty if there is none."""
    followups: tuple[str, ...] = ()
    """What the user says after each answer."""
    row: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The whole line."""


def read_prompts(path: str, split: str) -> tuple[PromptLine, ...]:
    """The prompts of a split; the split of a prompt follows from its text. ValueError names every bad line.

    A file is read once per process, and again if it changes.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"no such file: {file}; path= names a JSONL file with {_FORM} on each line")
    prompts = _read_all(file, file.stat().st_mtime_ns)
    kept = tuple(prompt for prompt in prompts if split_of(prompt.text) == split)
    if not kept:
        raise ValueError(f"{file} has no prompt for the split {split!r} ({len(prompts)} in all); add prompts to it")
    return kept


@cache
def _read_all(file: Path, changed: int) -> tuple[PromptLine, ...]:
    prompts, wrong = list[PromptLine](), list[str]()
    for number, line in enumerate(file.read_text(encoding="utf-8-sig", errors="replace").split("\n"), 1):
        if not line.strip():
            continue
        try:
            prompts.append(_read(line))
        except ValueError as error:
            wrong.append(f"line {number}: {error}")
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ValueError(f"{file} has {counted(len(wrong), 'bad line')}: {'; '.join(wrong[:_SHOWN])}{more}")
    return tuple(prompts)


def _read(line: str) -> PromptLine:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(row, dict) or "prompt" not in row:
        raise ValueError(f"not an object with a prompt, as in {_FORM}")
    reference = next((row[name] for name in _REFERENCES if row.get(name) is not None), "")
    if not isinstance(reference, str):
        raise ValueError(f"the reference must be a text, not {reference!r}")
    followups = row.get("followups") or []
    if not isinstance(followups, list) or not all(isinstance(each, str) and each.strip() for each in followups):
        raise ValueError("followups must be a list of texts")
    return PromptLine(text=_text(row["prompt"]), reference=reference, followups=tuple(followups), row=row)


def _text(prompt: Any) -> str:
    """The prompt as one text; a chat of several messages becomes a transcript."""
    if isinstance(prompt, str):
        messages = [{"role": "user", "content": prompt}]
    elif isinstance(prompt, list):
        messages = prompt
    else:
        raise ValueError("the prompt must be a text or a list of messages")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise ValueError('a message of the prompt must have the form {"role": "user", "content": "..."}')
        if message.get("role") not in _ROLES:
            raise ValueError(f"a message has the role {message.get('role')!r}; the roles are {', '.join(_ROLES)}")
    if not messages or messages[-1].get("role") != "user" or not messages[-1]["content"].strip():
        raise ValueError("the prompt must end with a message of the user that is not empty")
    if all(message["role"] == "system" for message in messages[:-1]):
        return "\n\n".join(message["content"] for message in messages)
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)
