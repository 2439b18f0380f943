"""Helpers: the events of a stream, and one conversation in three dialects."""

from __future__ import annotations

import json
from typing import Any

from turnwise.dialects.dialect import Answered, Scored
from turnwise.tools.formats import ToolCall

SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = {"type": "function", "function": {"name": "search", "description": "looks it up", "parameters": SCHEMA}}
CALL = ToolCall(name="search", arguments={"query": "mahis", "top": 1})

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "where is "}, {"type": "text", "text": "mahis ?"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "search", "arguments": '{"top": 1.0, "query": "mahis"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "in Lyon"},
    ],
    "tools": [SEARCH],
    "max_completion_tokens": 7,
    "temperature": 0.5,
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "where is mahis ?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"query":"mahis","top":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "in Lyon"},
    ],
    "tools": [{"type": "function", "name": "search", "description": "looks it up", "parameters": SCHEMA}],
    "max_output_tokens": 7,
    "temperature": 0.5,
}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "where is mahis ?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "xx"},
                {"type": "tool_use", "id": "c1", "name": "search", "input": {"query": "mahis", "top": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "in Lyon"}]},
    ],
    "tools": [{"name": "search", "description": "looks it up", "input_schema": SCHEMA}],
    "max_tokens": 7,
    "temperature": 0.5,
}

ANSWER = Answered(
    text="I look it up.",
    reasoning="who knows",
    calls=(CALL, ToolCall(name="search", arguments={})),
    finish="tool_calls",
    prompt_tokens=20,
    cached_tokens=8,
    completion_tokens=2,
    prompt_ids=(1, 2),
    ids=(5, 6),
    logprobs=(
        Scored(id=5, text="I look", logprob=-0.5, raw=b"I look", top=(Scored(id=9, text="x", logprob=-1.5, raw=b"x"),)),
        Scored(id=6, text=" it up.", logprob=-0.25, raw=b" it up."),
    ),
)


def events(stream: str) -> list[tuple[str, Any]]:
    """The name and the content of every event; every one must end with an empty line."""
    assert stream.endswith("\n\n")
    found = list[tuple[str, Any]]()
    for block in stream.removesuffix("\n\n").split("\n\n"):
        name = ""
        for line in block.split("\n"):
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data = line.removeprefix("data: ")
                found.append((name, data if data == "[DONE]" else json.loads(data)))
            else:
                assert line.startswith(":"), line
    return found
