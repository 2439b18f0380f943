"""Which earlier answer a call continues: a tree of the messages that a program and the policy have exchanged.

Clients echo the policy's words in their own form: they reorder arguments, trim blanks and drop reasoning. So messages
are compared in their canonical form, and whatever matches keeps the tokens that were sampled. A history that the
program has changed leaves the tree at the first difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.dialects.dialect import Asked, Said, canonical
from turnwise.rollout.call_branches import ProgramCall
from turnwise.tools.formats import write_call


@dataclass(kw_only=True, eq=False)
class _Node:
    """One message, and what has followed it."""

    children: dict[Hashable, _Node] = field(default_factory=dict[Hashable, "_Node"])
    answers: list[int] = field(default_factory=list[int])
    """The calls that were answered with exactly this message, if the policy said it."""

    def child(self, message: Said) -> _Node:
        return self.children.setdefault(canonical(message), _Node())


class CallTree:
    """The messages of one episode.

    Example:

        call = tree.find(asked, has_gone_on=branches.has_gone_on)   # ProgramCall(number=0, after=None, messages=[...])
        tree.add(asked, call.number, answer)
    """

    def __init__(self) -> None:
        self._roots: dict[str, _Node] = {}

    def find(self, number: int, asked: Asked, *, has_gone_on: Callable[[int], bool]) -> ProgramCall:
        """The call and the longest conversation with the policy that it extends."""
        node, last = self._root(asked), None
        for place, message in enumerate(asked.messages):
            following = node.children.get(canonical(message))
            if following is None:
                break
            node = following
            if node.answers:
                last = (place, node.answers)
        if last is None:
            messages = template_messages(asked.messages)
            return ProgramCall(number=number, after=None, messages=messages, tools=asked.tools)
        place, answers = last
        # Equal words may have been sampled twice: go on with the newest that nothing follows yet.
        free = [answer for answer in answers if not has_gone_on(answer)]
        after = (free or answers)[-1]
        return ProgramCall(number=number, after=after, messages=template_messages(asked.messages[place + 1 :]))

    def add(self, number: int, asked: Asked, answer: Said) -> None:
        """Remember a call and its answer."""
        node = self._root(asked)
        for message in (*asked.messages, answer):
            node = node.child(message)
        node.answers.append(number)

    def _root(self, asked: Asked) -> _Node:
        """Tools are shown before everything else, so other tools mean another conversation."""
        return self._roots.setdefault(json.dumps(asked.tools, sort_keys=True, default=str), _Node())


def template_messages(messages: Sequence[Said]) -> list[dict[str, Any]]:
    """Messages in the form that chat templates read; calls are written out as the policy writes them."""
    return [_template_message(message) for message in messages]


def _template_message(message: Said) -> dict[str, Any]:
    written = "\n".join(filter(None, [message.text, *map(write_call, message.calls)]))
    known = {"tool_call_id": message.call_id} if message.call_id else {}
    return {"role": message.role, "content": written, **known}
