"""Chats that are longer than a model has room for: refused, left out, or cut at one end, and counted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from turnwise.policy.rendering import Renderer
from turnwise.recipe.ingredients import TooLong
from turnwise.sources.chat_lines import ChatLine
from turnwise.sources.chat_turns import turns_of
from turnwise.sources.demonstrations import longest_sequence
from turnwise.types import Turn
from turnwise.words import counted

_TRIES = 8
"""How often a text is shortened: its end may be split into other words than before."""


@dataclass(kw_only=True)
class Lengths:
    """What happens to a chat of more than `room` tokens, and how often it did.

    - `drop`: it is left out.
    - `cut-left`: its oldest exchanges go, then the beginning of what the user says first; the system message stays.
    - `cut-right`: its tokens after the first `room` go; a reply that is cut has no end.
    """

    rule: TooLong = "refuse"
    room: int | None = None
    rows: int = 0
    cut: int = 0
    dropped: int = 0

    def fit(self, line: ChatLine, renderer: Renderer) -> list[Turn]:
        """The turns of a chat within the room; none if it is left out."""
        turns = turns_of(line.messages, renderer, context=line.context)
        self.rows += 1
        if self._fits(turns):
            return turns
        if self.rule == "refuse":
            raise ValueError(
                f"it has {longest_sequence(turns)} tokens but the model has room for {self.room}; "
                "shorten it or remove it, or set sft.too_long to drop, cut-left or cut-right"
            )
        kept = list[Turn]()
        if self.rule == "cut-left":
            kept = self._cut_left(line, renderer)
        elif self.rule == "cut-right":
            kept = self._cut_right(turns, renderer)
        self.cut, self.dropped = self.cut + bool(kept), self.dropped + (not kept)
        return kept

    def told(self, name: str) -> str:
        """How many were cut or left out; empty if all of them fit."""
        if not self.cut + self.dropped:
            return ""
        parts = [f"{self.cut} cut"] * bool(self.cut) + [f"{self.dropped} left out"] * bool(self.dropped)
        rows = f"{self.cut + self.dropped} of {counted(self.rows, 'row')}"
        return f"{rows} of {name} had more than {self.room} tokens: {', '.join(parts)} (sft.too_long={self.rule})"

    def _fits(self, turns: Sequence[Turn]) -> bool:
        return self.room is None or longest_sequence(turns) <= self.room

    def _cut_left(self, line: ChatLine, renderer: Renderer) -> list[Turn]:
        starts = _exchanges(line)
        shorter = [_from(line, start) for start in starts]
        turns = [turns_of(each.messages, renderer, context=each.context) for each in shorter[-1:]]
        if self._fits(turns[0]):
            # The fewer exchanges, the shorter: bisection finds the most that fit.
            place = bisect_left(
                range(len(starts) - 1),
                True,
                key=lambda k: self._fits(turns_of(shorter[k].messages, renderer, context=shorter[k].context)),
            )
            return turns_of(shorter[place].messages, renderer, context=shorter[place].context)
        return self._shorten(shorter[-1], renderer, turns[0])

    def _shorten(self, line: ChatLine, renderer: Renderer, turns: Sequence[Turn]) -> list[Turn]:
        """The last exchange alone, with less of what the user says at its beginning."""
        assert self.room is not None
        head = int(line.messages[0].role == "system")
        asked = line.messages[head]
        ids, gone = renderer.encode(renderer.shield(asked.content)), 0
        for _ in range(_TRIES):
            gone += longest_sequence(turns) - self.room
            if gone >= len(ids):
                return []
            shorter = replace(asked, content=renderer.decode(ids[gone:]))
            messages = [*line.messages[:head], shorter, *line.messages[head + 1 :]]
            turns = turns_of(messages, renderer, context=line.context)
            if self._fits(turns):
                return list(turns)
        return []

    def _cut_right(self, turns: Sequence[Turn], renderer: Renderer) -> list[Turn]:
        assert self.room is not None
        kept, length = list[Turn](), 0
        for turn in turns:
            start = (0 if turn.restarts else length) + len(turn.prompt_ids)
            said = turn.sampled_ids[: max(self.room - start, 0)]
            length = start + len(said)
            if not said:
                continue
            whole = len(said) == len(turn.sampled_ids)
            kept.append(turn if whole else replace(turn, sampled_ids=said, action=renderer.decode(said)))
        return kept


def _exchanges(line: ChatLine) -> list[int]:
    """Where something begins that the assistant answers and that is learned: the places of the user's messages."""
    last = max(place for place, each in enumerate(line.messages) if each.role == "assistant")
    begins = [place for place, (one, two) in enumerate(pairwise(line.messages), start=1) if one.role != two.role]
    head = int(line.messages[0].role == "system")
    return [head, *(place for place in begins if head < place < last and line.messages[place].role == "user")]


def _from(line: ChatLine, start: int) -> ChatLine:
    """The chat from this message on, after its system message."""
    head = int(line.messages[0].role == "system")
    context = max(line.context - (start - head), head) if line.context else 0
    return replace(line, messages=[*line.messages[:head], *line.messages[start:]], context=context)
