"""Calls in the syntax of model families, which their chat templates teach: Qwen and Hermes, Llama 3, Mistral.

| family | a call |
|---|---|
| Qwen, Hermes | `<tool_call>{"name": "search", "arguments": {"query": "mahis"}}</tool_call>`, also several |
| Qwen coder | `<tool_call><function=search><parameter=query>mahis</parameter></function></tool_call>` |
| Llama 3 | `{"name": "search", "parameters": {"query": "mahis"}}` and nothing else, maybe after `<|python_tag|>` |
| Mistral | `[TOOL_CALLS] [{"name": "search", "arguments": {"query": "mahis"}}]`, or `[TOOL_CALLS]search[ARGS]{...}` |

A text is read without its tokenizer, so that environments and replays read the same as the agent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.tools.formats import CallError, ToolCall, read_call
from turnwise.tools.tool import Tool

MESSAGES = "template_messages"
"""The key of `info` under which an environment says in messages what its observation says in text."""
_THOUGHT = "</think>"
_TAGGED = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*?)(?:</function>\s*)?\Z", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_LISTED = "[TOOL_CALLS]"
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\])?\s*(?=\{)")
_CODE = "<|python_tag|>"
MARKERS = ("<tool_call>", _LISTED, _CODE)
"""Where calls begin; a call of Llama 3 may also begin with its brace."""


@dataclass(frozen=True, kw_only=True)
class NativeCalls:
    """What a turn says and calls: `NativeCalls(text="let me look", calls=(ToolCall(...),))`."""

    text: str
    """The words before the calls."""
    calls: tuple[ToolCall, ...] = ()
    error: CallError | None = None
    """A call that cannot be read; then no call of the turn counts."""


def read_native_calls(text: str) -> NativeCalls:
    """The calls of a turn in any of the families' syntaxes; those inside the reasoning are no calls."""
    thought, closed, said = text.rpartition(_THOUGHT)
    before = thought + closed
    for read in (_read_tagged, _read_listed, _read_bare):
        found = read(said)
        if found is not None:
            words, calls = found
            wrong = next((call for call in calls if isinstance(call, CallError)), None)
            good = tuple(call for call in calls if isinstance(call, ToolCall))
            return NativeCalls(text=before + words, calls=() if wrong else good, error=wrong)
    return NativeCalls(text=text)


def read_tagged(body: str) -> ToolCall | CallError:
    """The call between <tool_call> and </tool_call>."""
    if function := _FUNCTION.fullmatch(body):
        return ToolCall(name=function[1], arguments=dict(_PARAMETER.findall(function[2])))
    return _read_object(body)


def call_id(number: int) -> str:
    """The id of an episode's call, counted from 0: nine letters and digits, as Mistral's templates want."""
    return f"call{number % 10**5:05d}"


def describe_tools(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """The tools in OpenAI's form, which chat templates read."""
    return [
        {
            "type": "function",
            "function": {
                "name": each.name,
                "description": each.description,
                "parameters": json.loads(json.dumps(each.parameters)),  # plain data, for other processes
            },
        }
        for each in tools
    ]


_Found = tuple[str, list[ToolCall | CallError]] | None


def _read_tagged(said: str) -> _Found:
    found = list(_TAGGED.finditer(said))
    if not found:
        return None
    unclosed = CallError(message="<tool_call> is not closed; write <tool_call>{...}</tool_call>")
    calls = [read_tagged(each[1]) if each[2] else unclosed for each in found]
    return said[: found[0].start()].rstrip(), calls


def _read_listed(said: str) -> _Found:
    words, marker, rest = said.partition(_LISTED)
    if not marker:
        return None
    if rest.lstrip().startswith("["):
        return words.rstrip(), _read_list(rest)
    return words.rstrip(), [_read_named(each) for each in rest.split(_LISTED) if each.strip()] or [_EMPTY]


def _read_list(text: str) -> list[ToolCall | CallError]:
    values = _load(text)
    if isinstance(values, CallError):
        return [values]
    rows = values if isinstance(values, list) else [values]
    return [_as_call(row) for row in rows] or [_EMPTY]


def _read_named(text: str) -> ToolCall | CallError:
    found = _NAMED.match(text)
    if found is None:
        return _EMPTY
    arguments = _load(text[found.end() :])
    return arguments if isinstance(arguments, CallError) else _as_call({"name": found[1], "arguments": arguments})


def _read_bare(said: str) -> _Found:
    marked, text = _CODE in said, said.replace(_CODE, "").strip()
    if not (text.startswith("{") and text.endswith("}")):
        return ("", [_EMPTY]) if marked else None
    values = _load_several(text)
    if isinstance(values, CallError):  # other text in braces is an answer
        return ("", [values]) if marked else None
    named = [isinstance(value, Mapping) and _names_a_call(value) for value in values]
    return ("", [_as_call(value) for value in values]) if all(named) or marked else None


def _names_a_call(value: Mapping[str, Any]) -> bool:
    return "name" in value and bool({"parameters", "arguments"} & value.keys())


def _load_several(text: str) -> list[Any] | CallError:
    """Objects one after the other, maybe with semicolons between them."""
    decoder, values, place = json.JSONDecoder(), list[Any](), 0
    while place < len(text):
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            return _not_json(error)
        values.append(value)
        place += len(text[place:]) - len(text[place:].lstrip("; \n\t"))
    return values


def _read_object(text: str) -> ToolCall | CallError:
    value = _load(text)
    return value if isinstance(value, CallError) else _as_call(value)


def _as_call(value: Any) -> ToolCall | CallError:
    if not isinstance(value, dict):
        return CallError(message="the call must be one JSON object")
    known = {"name": value.get("name"), "arguments": value["parameters"]} if "parameters" in value else value
    return read_call(known)


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return _not_json(error)


def _not_json(error: Exception) -> CallError:
    return CallError(message=f"not valid JSON ({str(error)[:60]}); write one object")


_EMPTY = CallError(message='write the call as {"name": ..., "arguments": {...}}')
