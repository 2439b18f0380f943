"""A client's messages with earlier calls as data, for templates that write calls themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from turnwise.dialects.dialect import Said
from turnwise.rollout.calling_conversation import ArgumentsAs, call_message
from turnwise.tools.native_calls import call_id


def told_calls(messages: Sequence[Said], arguments: ArgumentsAs) -> list[dict[str, Any]]:
    """The messages in the form that chat templates read.

    Calls get ids that every template accepts. A result whose id no call has answers the first call without a result.
    """
    told, known, waiting, made = list[dict[str, Any]](), dict[str, str](), dict[str, str](), 0
    for message in messages:
        if message.calls:
            ids = [call_id(made + number) for number in range(len(message.calls))]
            made += len(ids)
            known |= dict(zip(message.call_ids, ids, strict=False))
            waiting |= {id: call.name for id, call in zip(ids, message.calls, strict=True)}
            told.append(call_message(message.text, message.calls, ids, arguments_as_text=arguments == "text"))
        elif message.role == "tool" and waiting:
            id = known.get(message.call_id, "")
            id = id if id in waiting else next(iter(waiting))
            told.append({"role": "tool", "content": message.text, "tool_call_id": id, "name": waiting.pop(id)})
        else:
            told.append({"role": message.role, "content": message.text})
    return told


def with_marks(messages: Sequence[Said]) -> tuple[list[Said], list[str]]:
    """The messages with a word of its own in place of each call's arguments and of each result, and these words.

    A template that writes all of them loses no call. The real words do not show that: the template's list of tools
    has the same names, and results may be escaped.
    """
    marks, marked = list[str](), list[Said]()

    def new_mark() -> str:
        marks.append(f"told-{len(marks)}-here")
        return marks[-1]

    for message in messages:
        calls = tuple(replace(call, arguments={"mark": new_mark()}) for call in message.calls)
        text = new_mark() if message.role == "tool" else message.text
        marked.append(replace(message, calls=calls, text=text))
    return marked, marks
