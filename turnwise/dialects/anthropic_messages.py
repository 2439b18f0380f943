"""Anthropic's Messages format: `POST /v1/messages`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnwise.dialects import body_fields as fields
from turnwise.dialects.chat_messages import join_text
from turnwise.dialects.dialect import Answered, Asked, Said, Scored
from turnwise.dialects.events import arguments_text, event, unsent
from turnwise.tools.formats import ToolCall

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_KNOWN = (
    "model messages system max_tokens temperature top_p top_k stop_sequences seed stream return_token_ids tools "
    "tool_choice output_format mcp_servers container metadata service_tier thinking betas cache_control "
    "context_management output_config inference_geo"
)
"""Every field of the format; those that only help to serve or to bill change no answer and are not read."""
_AS_TEXT = "only text, tools and their results are read; write it as text, or leave it out"


class AnthropicMessages:
    """Reads and writes messages."""

    path = "/v1/messages"

    def read(self, body: Mapping[str, Any]) -> Asked:
        """What a request asks; ValueError with the fix."""
        body = fields.require_body(body)
        limit = fields.integer(body, "max_tokens", least=1)
        if limit is None:
            raise ValueError("max_tokens is missing; this format requires it")
        return self._read(body, limit)

    def read_to_count(self, body: Mapping[str, Any]) -> Asked:
        """What a request to count tokens has: the same without a limit."""
        return self._read(fields.require_body(body), None)

    def _read(self, body: Mapping[str, Any], limit: int | None) -> Asked:
        tools, others = _read_tools(fields.rows(body, "tools"))
        return Asked(
            model=fields.model_name(body),
            messages=fields.require_conversation(_read_messages(body), name="messages"),
            tools=tools,
            tool_choice=_read_choice(fields.options(body, "tool_choice")),
            max_tokens=limit,
            temperature=fields.number(body, "temperature", least=0, most=1),
            top_p=fields.number(body, "top_p", least=1e-9, most=1),
            top_k=fields.integer(body, "top_k", least=0),
            stop=fields.stops(body, "stop_sequences"),
            seed=fields.seed(body),
            stream=fields.flag(body, "stream"),
            return_token_ids=fields.flag(body, "return_token_ids"),
            unmet=(*fields.set_fields(body, {"output_format": (), "mcp_servers": (), "container": ()}), *others),
            unknown=fields.unknown(body, _KNOWN),
        )

    def write(self, asked: Asked, *answers: Answered, id: str, created: int) -> dict[str, Any]:
        """The body of a whole answer."""
        answer = answers[0]
        body = {**_head(asked, id), "content": _blocks(answer, id), **_ending(answer), "usage": _usage(answer)}
        if asked.return_token_ids:
            body |= {"prompt_token_ids": list(answer.prompt_ids), "token_ids": list(answer.ids)}
        return body

    def stream(self, asked: Asked, *, id: str, created: int) -> MessagesStream:
        """A writer for a streamed answer."""
        return MessagesStream(asked, id=id)

    def problem(self, status: int, message: str, code: str = "") -> dict[str, Any]:
        """The body of an error."""
        kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}


class MessagesStream:
    """Writes the events of a message; at any time at most one block is open."""

    def __init__(self, asked: Asked, *, id: str) -> None:
        self._asked, self._id = asked, id
        self._block, self._open = 0, ""
        self._sent = {"thinking": "", "text": ""}

    def begin(self) -> str:
        """The message has begun; its usage is known at its end."""
        body = {**_head(self._asked, self._id), "content": [], "stop_reason": None, "stop_sequence": None}
        return _event("message_start", message={**body, "usage": {"input_tokens": 0, "output_tokens": 0}})

    def delta(
        self,
        text: str = "",
        *,
        reasoning: str = "",
        choice: int = 0,
        ids: Sequence[int] = (),
        logprobs: Sequence[Scored] = (),
    ) -> str:
        """The next part of the reasoning or of the text."""
        return self._part("thinking", reasoning) + self._part("text", text)

    def end(self, *answers: Answered) -> str:
        """The rest, then the calls, then why it ended."""
        answer = answers[0]
        thought, rest = unsent(answer.reasoning, self._sent["thinking"]), unsent(answer.text, self._sent["text"])
        written = self.delta(rest, reasoning=thought)
        if not answer.calls and not self._sent["text"]:
            written += self._switch("text")
        written += self._close()
        for number, call in enumerate(answer.calls):
            block = {**_tool_use(call, number, self._id), "input": {}}
            part = {"type": "input_json_delta", "partial_json": arguments_text(call)}
            written += _event("content_block_start", index=self._block, content_block=block)
            written += _event("content_block_delta", index=self._block, delta=part)
            written += _event("content_block_stop", index=self._block)
            self._block += 1
        ids = {"prompt_token_ids": list(answer.prompt_ids), "token_ids": list(answer.ids)}
        more = ids if self._asked.return_token_ids else {}
        written += _event("message_delta", delta=_ending(answer), usage=_usage(answer), **more)
        return written + _event("message_stop")

    def fail(self, status: int, message: str) -> str:
        """An error in place of the next event."""
        return _event("error", error=anthropic_messages.problem(status, message)["error"])

    def _part(self, kind: str, text: str) -> str:
        if not text:
            return ""
        written = self._switch(kind)
        self._sent[kind] += text
        return written + _event("content_block_delta", index=self._block, delta={"type": f"{kind}_delta", kind: text})

    def _switch(self, kind: str) -> str:
        """Begin a block unless it is the open one."""
        if self._open == kind:
            return ""
        written, self._open = self._close(), kind
        return written + _event("content_block_start", index=self._block, content_block=_block(kind, ""))

    def _close(self) -> str:
        if not self._open:
            return ""
        self._open, self._block = "", self._block + 1
        return _event("content_block_stop", index=self._block - 1)


def _read_messages(body: Mapping[str, Any]) -> Iterator[Said]:
    system = join_text(0, body.get("system"), may_lack=True)
    if system:
        yield Said(role="system", text=system)
    for place, row in enumerate(fields.rows(body, "messages")):
        role = row.get("role") if isinstance(row, dict) else None
        if role not in ("user", "assistant", "system"):
            raise ValueError(f"message {place} has the unknown role {role!r}; use user or assistant")
        content = row.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else fields.rows(row, "content")
        yield from [_assistant(place, blocks)] if role == "assistant" else _heard(place, role, blocks)


def _assistant(place: int, blocks: Sequence[Any]) -> Said:
    """One message of the assistant, whatever the number of its blocks."""
    text, reasoning, calls, ids = "", "", list[ToolCall](), list[str]()
    for block in blocks:
        kind = _kind(place, block)
        if kind == "text":
            text += fields.text(block, "text")
        elif kind == "thinking":
            reasoning += fields.text(block, "thinking")
        elif kind == "tool_use":
            name = fields.text(block, "name")
            if not name:
                raise ValueError(f"message {place} has a tool_use without a name")
            calls.append(ToolCall(name=name, arguments=fields.options(block, "input")))
            ids.append(fields.text(block, "id"))
        elif kind != "redacted_thinking":
            raise ValueError(f"message {place} has a block of type {kind[:60]}; {_AS_TEXT}")
    return Said(role="assistant", text=text, reasoning=reasoning, calls=tuple(calls), call_ids=tuple(ids))


def _heard(place: int, role: str, blocks: Sequence[Any]) -> Iterator[Said]:
    """The results of tools, each a message of its own, and what the user says."""
    words = list[str]()
    for block in blocks:
        kind = _kind(place, block)
        if kind == "tool_result":
            if words:
                yield Said(role=role, text="".join(words))
                words = []
            text = join_text(place, block.get("content"), may_lack=True)
            yield Said(role="tool", text=text, call_id=fields.text(block, "tool_use_id"))
        elif kind == "text":
            words.append(fields.text(block, "text"))
        else:
            raise ValueError(f"message {place} has a block of type {kind[:60]}; {_AS_TEXT}")
    if words or not blocks:
        yield Said(role=role, text="".join(words))


def _kind(place: int, block: Any) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        raise ValueError(f'message {place} has a block without a type; send {{"type": "text", "text": "..."}}')
    return kind


def _read_tools(rows: Sequence[Any]) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    tools, others = list[Mapping[str, Any]](), list[str]()
    for place, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(f"tool {place} is not an object")
        if row.get("type") not in (None, "custom"):
            others.append(f"tools of type {str(row['type'])[:60]}")
            continue
        tools.append(fields.function_tool(place, row.get("name"), row.get("description"), row.get("input_schema")))
    return tuple(tools), tuple(others)


def _read_choice(choice: Mapping[str, Any]) -> str:
    kind = choice.get("type", "auto")
    if kind == "tool":
        name = fields.text(choice, "name")
        if name:
            return name
    if kind not in _CHOICES:
        raise ValueError("tool_choice must be of type auto, any, none, or tool with a name")
    return _CHOICES[kind]


def _head(asked: Asked, id: str) -> dict[str, Any]:
    return {"id": f"msg_{id}", "type": "message", "role": "assistant", "model": asked.model}


def _blocks(answer: Answered, id: str) -> list[dict[str, Any]]:
    blocks = [_block("thinking", answer.reasoning)] if answer.reasoning else []
    if answer.text or not answer.calls:
        blocks.append(_block("text", answer.text))
    return blocks + [_tool_use(call, number, id) for number, call in enumerate(answer.calls)]


def _block(kind: str, text: str) -> dict[str, Any]:
    # Others sign reasoning, to know it when it comes back; ours needs no proof.
    return {"type": kind, kind: text, **({"signature": ""} if kind == "thinking" else {})}


def _tool_use(call: ToolCall, number: int, id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{id}_{number}", "name": call.name, "input": dict(call.arguments)}


def _ending(answer: Answered) -> dict[str, Any]:
    reason = "stop_sequence" if answer.stopped_by else _STOP_REASONS[answer.finish]
    return {"stop_reason": reason, "stop_sequence": answer.stopped_by or None}


def _usage(answer: Answered) -> dict[str, Any]:
    """Cached tokens are not among the input tokens here."""
    fresh = answer.prompt_tokens - answer.cached_tokens
    return {
        "input_tokens": fresh,
        "cache_read_input_tokens": answer.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": answer.completion_tokens,
    }


def _event(kind: str, **content: Any) -> str:
    return event({"type": kind, **content}, kind)


anthropic_messages = AnthropicMessages()
