"""OpenAI's Responses format: `POST /v1/responses`. No response is kept, so every request has its whole input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnwise.dialects import body_fields as fields
from turnwise.dialects.chat_messages import join_text
from turnwise.dialects.dialect import Answered, Asked, Said
from turnwise.dialects.events import openai_problem
from turnwise.dialects.openai_chat import read_tool_choice
from turnwise.dialects.responses_stream import ResponsesStream, write_response
from turnwise.tools.formats import CallError, ToolCall, read_call

_STATE = ("previous_response_id", "conversation", "prompt")
_TEXTS = ("input_text", "output_text", "text", "refusal")
_KNOWN = (
    "model input instructions tools tool_choice max_output_tokens temperature top_p stop seed stream stream_options "
    "include top_logprobs return_token_ids text background metadata store service_tier safety_identifier user "
    "prompt_cache_key prompt_cache_retention reasoning truncation parallel_tool_calls max_tool_calls verbosity"
)
"""Every field of the format; those that only help to serve or to bill change no answer and are not read."""
_MOST_ALTERNATIVES = 20


class OpenAIResponses:
    """Reads and writes responses."""

    path = "/v1/responses"

    def read(self, body: Mapping[str, Any]) -> Asked:
        """What a request asks; ValueError with the fix."""
        body = fields.require_body(body)
        for name in (name for name in _STATE if body.get(name) is not None):
            raise ValueError(f"{name} refers to something kept by the server, and nothing is; send the whole input")
        if fields.flag(body, "background"):
            raise ValueError("background responses are not kept; leave background out")
        tools, others = _read_tools(fields.rows(body, "tools"))
        return Asked(
            model=fields.model_name(body),
            messages=fields.require_conversation(_read_input(body), name="input"),
            tools=tools,
            tool_choice=read_tool_choice(body.get("tool_choice")),
            max_tokens=fields.integer(body, "max_output_tokens", least=1),
            temperature=fields.number(body, "temperature", least=0, most=2),
            top_p=fields.number(body, "top_p", least=1e-9, most=1),
            stop=fields.stops(body, "stop"),
            seed=fields.seed(body),
            stream=fields.flag(body, "stream"),
            logprobs=_read_logprobs(body),
            return_token_ids=fields.flag(body, "return_token_ids"),
            unmet=(*_unmet(body), *others),
            unknown=fields.unknown(body, _KNOWN, _STATE),
        )

    def write(self, asked: Asked, *answers: Answered, id: str, created: int) -> dict[str, Any]:
        """The body of a whole answer."""
        return write_response(asked, answers[0], id=id, created=created)

    def stream(self, asked: Asked, *, id: str, created: int) -> ResponsesStream:
        """A writer for a streamed answer."""
        return ResponsesStream(asked, id=id, created=created)

    def problem(self, status: int, message: str, code: str = "") -> dict[str, Any]:
        """The body of an error."""
        return openai_problem(status, message, code)


def _read_input(body: Mapping[str, Any]) -> list[Said]:
    instructions = fields.text(body, "instructions")
    said = [Said(role="system", text=instructions)] if instructions else []
    given = body.get("input")
    if isinstance(given, str):
        return [*said, Said(role="user", text=given)]
    for place, item in enumerate(fields.rows(body, "input")):
        _append(said, place, item)
    return said


def _append(said: list[Said], place: int, item: Any) -> None:
    """Add one item; reasoning, words and calls in a row are one message of the assistant."""
    kind = item.get("type", "message") if isinstance(item, dict) else type(item).__name__
    if kind == "message":
        role = "system" if item.get("role") == "developer" else item.get("role")
        if role not in ("system", "user", "assistant"):
            raise ValueError(f"input {place} has the unknown role {role!r}; use system, user or assistant")
        text = join_text(place, _as_text(item.get("content")), may_lack=True, kinds=_TEXTS)
        if role == "assistant" and _is_open(said) and not said[-1].text and not said[-1].calls:
            said[-1] = replace(said[-1], text=text)
        else:
            said.append(Said(role=role, text=text))
    elif kind == "reasoning":
        said.append(Said(role="assistant", reasoning=_reasoning(item)))
    elif kind == "function_call":
        call, id = _call(place, item), str(item.get("call_id") or "")
        if not _is_open(said):
            said.append(Said(role="assistant"))
        calls, ids = (*said[-1].calls, call), (*said[-1].call_ids, id)
        said[-1] = replace(said[-1], calls=calls, call_ids=ids)
    elif kind == "function_call_output":
        text = join_text(place, _as_text(item.get("output")), may_lack=True, kinds=_TEXTS)
        said.append(Said(role="tool", text=text, call_id=str(item.get("call_id") or "")))
    elif kind == "item_reference":
        raise ValueError(f"input {place} refers to an item kept by the server, and none is; send the item itself")
    else:
        raise ValueError(f"input {place} is of type {str(kind)[:60]}, which is not read; send messages and functions")


def _is_open(said: Sequence[Said]) -> bool:
    return bool(said) and said[-1].role == "assistant"


def _as_text(content: Any) -> Any:
    """A refusal is a part whose text has another name."""
    if not isinstance(content, list):
        return content
    return [
        {**part, "text": part["refusal"]} if isinstance(part, dict) and part.get("type") == "refusal" else part
        for part in content
    ]


def _reasoning(item: Mapping[str, Any]) -> str:
    parts = [*fields.rows(item, "content")] or [*fields.rows(item, "summary")]
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _call(place: int, item: Mapping[str, Any]) -> ToolCall:
    call = read_call({"name": item.get("name"), "arguments": item.get("arguments") or "{}"})
    if isinstance(call, CallError):
        raise ValueError(f"input {place} is a function call that cannot be read: {call.message}")
    return call


def _read_tools(rows: Sequence[Any]) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    tools, others = list[Mapping[str, Any]](), list[str]()
    for place, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(f"tool {place} is not an object")
        if row.get("type", "function") != "function":
            others.append(f"tools of type {str(row['type'])[:60]}")
            continue
        tools.append(fields.function_tool(place, row.get("name"), row.get("description"), row.get("parameters")))
    return tuple(tools), tuple(others)


def _read_logprobs(body: Mapping[str, Any]) -> int | None:
    wanted = "message.output_text.logprobs" in fields.rows(body, "include")
    alternatives = fields.integer(body, "top_logprobs", least=0, most=_MOST_ALTERNATIVES)
    return (alternatives or 0) if wanted or alternatives else None


def _unmet(body: Mapping[str, Any]) -> tuple[str, ...]:
    form = fields.options(fields.options(body, "text"), "format").get("type", "text")
    return () if form == "text" else (f"text.format of type {str(form)[:60]}",)


openai_responses = OpenAIResponses()
