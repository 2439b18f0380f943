"""What a model means by its raw text: reasoning, words for the user, calls of tools."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from turnwise.tools.formats import CallError, ToolCall, read_call

_THINK, _THOUGHT = "<think>", "</think>"
_CALL = "<tool_call>"
_CALLS = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A model's raw text, taken apart."""

    text: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


def read_reply(text: str, *, tools: bool) -> Reply:
    """Take `<think>...</think>` at the start and, with tools, every `<tool_call>{json}</tool_call>` out of the text.

    What cannot be read as a call stays text, so nothing is lost. If the prompt has opened the reasoning, put its
    `<think>` in front.
    """
    reasoning, said = _split_reasoning(text)
    if not tools:
        return Reply(text=said, reasoning=reasoning)
    calls, parts, end = list[ToolCall](), list[str](), 0
    for found in _CALLS.finditer(said):
        call = _read_call(found[1])
        if call is not None:
            calls.append(call)
            parts.append(said[end : found.start()])
            end = found.end()
    if not calls:
        return Reply(text=said, reasoning=reasoning)
    rest = "".join([*parts, said[end:]]).rstrip()
    return Reply(text=rest, reasoning=reasoning, calls=tuple(calls))


class ReplyParts:
    """The same while the text is still growing: what is said is final, and a prefix of what `read_reply` will give.

    parts = ReplyParts(tools=True)
    parts.push("<think>hm</th")   # ("", "hm")
    parts.push("ink>Lyon<tool_")  # ("Lyon", "")
    """

    def __init__(self, *, tools: bool) -> None:
        self._tools = tools
        self._text = ""
        self._said = self._thought = 0

    def push(self, text: str) -> tuple[str, str]:
        """More raw text; the words for the user and the reasoning that have become certain."""
        self._text += text
        opening = self._text.lstrip()
        if len(opening) < len(_THINK) and _THINK.startswith(opening):
            return "", ""  # it may still become reasoning
        reasoning, said = _split_reasoning(self._text)
        closed = _THOUGHT in self._text
        if opening.startswith(_THINK) and not closed:
            certain = _without_start_of(reasoning, _THOUGHT).rstrip()
            return "", self._new_thought(certain)
        return self._new_said(self._certain(said)), self._new_thought(reasoning)

    def _certain(self, said: str) -> str:
        if not self._tools:
            return said
        before, call, _ = said.partition(_CALL)
        # Blanks before a call belong to nobody, and any blanks may turn out to be before a call.
        return (before if call else _without_start_of(said, _CALL)).rstrip()

    def _new_said(self, certain: str) -> str:
        new, self._said = certain[self._said :], max(self._said, len(certain))
        return new

    def _new_thought(self, certain: str) -> str:
        new, self._thought = certain[self._thought :], max(self._thought, len(certain))
        return new


def _split_reasoning(text: str) -> tuple[str, str]:
    """The reasoning at the start and the rest; without an end, all of it is reasoning."""
    start = text.lstrip()
    if not start.startswith(_THINK):
        return "", text
    reasoning, closed, rest = start[len(_THINK) :].partition(_THOUGHT)
    return reasoning.strip() if closed else reasoning.lstrip(), rest.lstrip()


def _without_start_of(text: str, marker: str) -> str:
    """The text without an end that may be the beginning of the marker."""
    held = next((size for size in range(len(marker) - 1, 0, -1) if text.endswith(marker[:size])), 0)
    return text[: len(text) - held]


def _read_call(body: str) -> ToolCall | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    call = read_call(value) if isinstance(value, dict) else None
    return None if isinstance(call, CallError) else call
