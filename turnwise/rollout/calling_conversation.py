"""Conversations in which the model calls tools and the chat template knows about it.

Most templates show a call in the model's own words: its turn stays the text that was sampled. Some, such as Mistral's,
insist on `tool_calls`: they count turns, and refuse a tool's result that answers no call. There the template is told
the call as data, and what it writes for it is skipped: the sampled tokens stand in its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import TemplateError

from turnwise.policy.rendering import Conversation, Renderer
from turnwise.tools.formats import ToolCall
from turnwise.tools.native_calls import call_id, read_native_calls

CallsAs = Literal["text", "data", "user"]
"""How a template is told of calls and results: the call as text or as data with results in the role `tool`, or both as
plain text, the results as the user's."""
ArgumentsAs = Literal["data", "text"]
"""How a template that writes calls itself wants their arguments; the text is JSON."""
BREAKING = (TemplateError, TypeError, AttributeError)
"""What a template may raise; it adds texts to what is none, or asks a text for a field."""


@dataclass(kw_only=True)
class CallingConversation(Conversation):
    """A conversation whose template is told calls as data; `text` is then what the template writes for them."""

    def record(self, sampled_ids: Sequence[int]) -> str:
        """Record a sampled turn; its text without the token that ended it."""
        before = self.text
        text = super().record(sampled_ids)
        found, made = read_native_calls(text), sum(len(message.get("tool_calls", ())) for message in self.messages)
        ids = [call_id(made + number) for number in range(len(found.calls))]
        self._tell(before, sampled_ids, self.renderer.opening + found.text, found.calls, ids)
        return text

    def record_calls(
        self, sampled_ids: Sequence[int], content: str, calls: Sequence[ToolCall], ids: Sequence[str]
    ) -> str:
        """The same for a turn whose calls are known, in whatever syntax it writes them."""
        before = self.text
        text = super().record(sampled_ids)
        self._tell(before, sampled_ids, content, calls, ids)
        return text

    def _tell(
        self, before: str, sampled_ids: Sequence[int], content: str, calls: Sequence[ToolCall], ids: Sequence[str]
    ) -> None:
        renderer = self.renderer
        told = tell_template(renderer, self.messages[:-1], content, calls, ids) if calls else None
        if told is not None:
            self.messages[-1], written = told
            ended = sampled_ids[-1] == renderer.end_id
            self.text = before.removesuffix(renderer.opening) + written + (renderer.end_text if ended else "")


def tell_template(
    renderer: Renderer,
    messages: Sequence[Mapping[str, Any]],
    content: str,
    calls: Sequence[ToolCall],
    ids: Sequence[str],
) -> tuple[dict[str, Any], str] | None:
    """The reply with its calls as data, shielded, and what the template writes for it up to the end token.

    None where the template leaves out a call or other words, or ends the turn with no token.
    """
    for as_text in (False, True):  # templates differ in how they want a call's arguments
        reply = renderer.shield_all(call_message(content, calls, ids, arguments_as_text=as_text))
        if written := _written(renderer, messages, reply):
            return reply, written
    return None


def call_message(
    content: str, calls: Sequence[ToolCall], ids: Sequence[str], *, arguments_as_text: bool = False
) -> dict[str, Any]:
    """The message of an assistant who calls tools, as templates know it."""
    rows = list[dict[str, Any]]()
    for number, call in enumerate(calls):
        arguments = dict(call.arguments)
        written = json.dumps(arguments, ensure_ascii=False) if arguments_as_text else arguments
        known = ids[number] if number < len(ids) else str(number)
        rows.append({"id": known, "type": "function", "function": {"name": call.name, "arguments": written}})
    return {"role": "assistant", "content": content, "tool_calls": rows}


def _written(renderer: Renderer, messages: Sequence[Mapping[str, Any]], reply: Mapping[str, Any]) -> str:
    calls = reply["tool_calls"]
    results = [
        {"role": "tool", "content": "?", "name": call["function"]["name"], "tool_call_id": call["id"]} for call in calls
    ]
    try:
        before = renderer.render(messages).removesuffix(renderer.opening)
        # Results follow, because some templates treat the last message differently.
        whole = renderer.render([*messages, reply, *results])
    except BREAKING:
        return ""
    if not renderer.end_text or not whole.startswith(before):
        return ""
    written = whole.removeprefix(before).partition(renderer.end_text)[0]
    words = [reply["content"].strip(), *(call["function"]["name"] for call in calls)]
    return written if all(word in written for word in words) else ""


def find_calls_as(renderer: Renderer) -> CallsAs:
    """How the template wants calls and their results, found by rendering a small chat with two of them."""
    words = [f"word{place}" for place in range(5)]
    for form in ("text", "data"):
        messages: list[dict[str, Any]] = [{"role": "user", "content": words[0]}]
        for place in (1, 3):
            name, known = words[place], call_id(place)
            call = ToolCall(name=name, arguments={})
            data = call_message("", [call], [known])
            messages.append(data if form == "data" else {"role": "assistant", "content": name})
            messages.append({"role": "tool", "name": name, "tool_call_id": known, "content": words[place + 1]})
        try:
            text = renderer.render(messages)
        except BREAKING:
            continue
        if all(word in text for word in words):
            return form
    return "user"


def find_arguments_as(renderer: Renderer) -> ArgumentsAs | None:
    """How the template wants the arguments of calls that are told as data; None if it does not write such calls."""
    words = [f"word{place}" for place in range(5)]
    call = ToolCall(name=words[1], arguments={words[2]: words[3]})
    result = {"role": "tool", "name": words[1], "tool_call_id": call_id(0), "content": words[4]}
    for form in ("data", "text"):
        said = call_message("", [call], [call_id(0)], arguments_as_text=form == "text")
        try:
            text = renderer.render([{"role": "user", "content": words[0]}, said, result])
        except BREAKING:
            continue
        if all(word in text for word in words):
            return form
    return None
