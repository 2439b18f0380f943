"""How clients of the three formats write a conversation and read an answer, in as few lines as possible."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.dialects.anthropic_messages import anthropic_messages
from turnwise.dialects.dialect import Dialect, Said
from turnwise.dialects.openai_chat import openai_chat
from turnwise.dialects.openai_responses import openai_responses
from turnwise.tools.formats import ToolCall

Body = dict[str, Any]
Functions = Sequence[Mapping[str, Any]]


class ChatClient:
    """OpenAI's chat format."""

    dialect: Dialect = openai_chat

    def ask(self, messages: Sequence[Said], tools: Functions, **more: Any) -> Body:
        rows = [self._row(message) for message in messages]
        shown = {"tools": [{"type": "function", "function": tool} for tool in tools]} if tools else {}
        return {"model": "any", "messages": rows, **shown, **more}

    def _row(self, said: Said) -> Body:
        row: Body = {"role": said.role, "content": said.text}
        if said.calls:
            pairs = zip(said.calls, said.call_ids, strict=True)
            row |= {"content": said.text or None, "tool_calls": [self._call(call, id) for call, id in pairs]}
        return {**row, "tool_call_id": said.call_id} if said.role == "tool" else row

    def _call(self, call: ToolCall, id: str) -> Body:
        return {"id": id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}

    def read(self, answer: Body) -> Said:
        message = answer["choices"][0]["message"]
        made = message.get("tool_calls") or []
        calls = [
            ToolCall(name=each["function"]["name"], arguments=json.loads(each["function"]["arguments"]))
            for each in made
        ]
        ids = tuple(each["id"] for each in made)
        reasoning = message.get("reasoning_content") or ""
        return Said(
            role="assistant", text=message["content"] or "", reasoning=reasoning, calls=tuple(calls), call_ids=ids
        )


class ResponsesClient:
    """OpenAI's Responses format."""

    dialect: Dialect = openai_responses

    def ask(self, messages: Sequence[Said], tools: Functions, **more: Any) -> Body:
        system = messages[0].text if messages[0].role == "system" else None
        items = [item for message in messages[system is not None :] for item in self._items(message)]
        shown = {"tools": [{"type": "function", **tool} for tool in tools]} if tools else {}
        told = {} if system is None else {"instructions": system}
        return {"model": "any", "input": items, **told, **shown, **more}

    def _items(self, said: Said) -> list[Body]:
        if said.role == "tool":
            return [{"type": "function_call_output", "call_id": said.call_id, "output": said.text}]
        kind = "output_text" if said.role == "assistant" else "input_text"
        words = [{"type": "message", "role": said.role, "content": [{"type": kind, "text": said.text}]}]
        if said.calls and not said.text:
            words = []
        pairs = zip(said.calls, said.call_ids, strict=True)
        return [
            *words,
            *(
                {"type": "function_call", "call_id": id, "name": call.name, "arguments": json.dumps(call.arguments)}
                for call, id in pairs
            ),
        ]

    def read(self, answer: Body) -> Said:
        text, calls, ids = "", list[ToolCall](), list[str]()
        for item in answer["output"]:
            if item["type"] == "message":
                text += "".join(part["text"] for part in item["content"])
            elif item["type"] == "function_call":
                calls.append(ToolCall(name=item["name"], arguments=json.loads(item["arguments"])))
                ids.append(item["call_id"])
        return Said(role="assistant", text=text, calls=tuple(calls), call_ids=tuple(ids))


class MessagesClient:
    """Anthropic's format: results of tools are parts of the user's message."""

    dialect: Dialect = anthropic_messages

    def ask(self, messages: Sequence[Said], tools: Functions, **more: Any) -> Body:
        system = {"system": messages[0].text} if messages[0].role == "system" else {}
        rows = list[Body]()
        for message in messages[len(system) :]:
            role, blocks = ("assistant" if message.role == "assistant" else "user"), self._blocks(message)
            if rows and message.role == "tool" and rows[-1]["role"] == "user":
                rows[-1]["content"] += blocks
            else:
                rows.append({"role": role, "content": blocks})
        shown = [{"name": t["name"], "description": t["description"], "input_schema": t["parameters"]} for t in tools]
        more = {"max_tokens": 500, **more}
        return {"model": "any", **system, "messages": rows, **({"tools": shown} if shown else {}), **more}

    def _blocks(self, said: Said) -> list[Body]:
        if said.role == "tool":
            return [{"type": "tool_result", "tool_use_id": said.call_id, "content": said.text}]
        text = [{"type": "text", "text": said.text}] if said.text or not said.calls else []
        pairs = zip(said.calls, said.call_ids, strict=True)
        return [
            *text,
            *({"type": "tool_use", "id": id, "name": call.name, "input": call.arguments} for call, id in pairs),
        ]

    def read(self, answer: Body) -> Said:
        blocks = answer["content"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        made = [block for block in blocks if block["type"] == "tool_use"]
        calls = tuple(ToolCall(name=block["name"], arguments=block["input"]) for block in made)
        return Said(role="assistant", text=text, calls=calls, call_ids=tuple(block["id"] for block in made))


Client = ChatClient | ResponsesClient | MessagesClient
CLIENTS: tuple[Client, ...] = (ChatClient(), ResponsesClient(), MessagesClient())
