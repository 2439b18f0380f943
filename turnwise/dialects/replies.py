"""What a model means by its raw text: reasoning, words for the user, calls of tools."""

from __future__ import annotations

import re
from dataclasses import dataclass

from turnwise.tools.formats import ToolCall
from turnwise.tools.native_calls import MARKERS, read_native_calls, read_tagged

_THINK, _THOUGHT = "<think>", "</think>"
_CALLS = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A model's raw text, taken apart."""

    text: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


def read_reply(text: str, *, tools: bool) -> Reply:
    """Take `<think>...</think>` at the start and, with tools, the calls in any family's syntax out of the text.

    What cannot be read as a call stays text, so nothing is lost. If the prompt has opened the reasoning, put its
    `<think>` in front.
    """
    reasoning, said = _split_reasoning(text)
    if not tools:
        return Reply(text=said, reasoning=reasoning)
    calls, parts, end = list[ToolCall](), list[str](), 0
    for found in _CALLS.finditer(said):
        call = read_tagged(found[1])
        if isinstance(call, ToolCall):
            calls.append(call)
            parts.append(said[end : found.start()])
            end = found.end()
    if not calls:
        native = read_native_calls(said)
        return Reply(text=native.text if native.calls else said, reasoning=reasoning, calls=native.calls)
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
            certain = reasoning[: len(reasoning) - overlap(reasoning, _THOUGHT)].rstrip()
            return "", self._new_thought(certain)
        return self._new_said(self._certain(said)), self._new_thought(reasoning)

    def _certain(self, said: str) -> str:
        # Blanks before a call belong to nobody, and any blanks may turn out to be before a call.
        return _before_calls(said).rstrip() if self._tools else said

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


def overlap(text: str, marker: str) -> int:
    """How many characters at the text's end may be the beginning of the marker."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:size])), 0)


def _before_calls(said: str) -> str:
    """The words that stay words, whatever follows."""
    begins = min((place for each in MARKERS if (place := said.find(each)) >= 0), default=None)
    if begins is None:
        begins = len(said) - max(overlap(said, each) for each in MARKERS)
    thought, closed, words = said[:begins].rpartition(_THOUGHT)
    return thought + closed + ("" if words.lstrip().startswith("{") else words)
