"""How a response of OpenAI's Responses format is written, whole and as events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.dialects.dialect import Answered, Asked, Scored
from turnwise.dialects.events import arguments_text, event, openai_problem, unsent
from turnwise.dialects.openai_chat import write_logprobs


def write_response(asked: Asked, answer: Answered | None, *, id: str, created: int) -> dict[str, Any]:
    """A response; without an answer, one that has only begun."""
    cut = answer is not None and answer.finish == "length"
    body: dict[str, Any] = {
        "id": f"resp_{id}",
        "object": "response",
        "created_at": created,
        "status": "in_progress" if answer is None else "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": None,
        "max_output_tokens": asked.max_tokens,
        "metadata": {},
        "model": asked.model,
        "output": [] if answer is None else _items(asked, answer, id),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": asked.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": _tool_choice(asked.tool_choice),
        "tools": [{"type": "function", "strict": False, **tool["function"]} for tool in asked.tools],
        "top_p": asked.top_p,
        "truncation": "disabled",
        "usage": None if answer is None else _usage(answer),
    }
    if answer is not None and asked.return_token_ids:
        body |= {"prompt_token_ids": list(answer.prompt_ids), "token_ids": list(answer.ids)}
    return body


class ResponsesStream:
    """Writes the events of a response; at any time at most one item is open."""

    def __init__(self, asked: Asked, *, id: str, created: int) -> None:
        self._asked, self._id, self._created = asked, id, created
        self._number = self._item = 0
        self._open = ""
        self._sent = {"reasoning": "", "message": ""}
        self._scored = list[Scored]()
        self._scored_sent = 0

    def begin(self) -> str:
        """The response has been made."""
        body = write_response(self._asked, None, id=self._id, created=self._created)
        return self._event("response.created", response=body) + self._event("response.in_progress", response=body)

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
        self._scored += logprobs
        written = ""
        if reasoning:
            written += self._switch("reasoning")
            self._sent["reasoning"] += reasoning
            written += self._event("response.reasoning_text.delta", **self._place(), content_index=0, delta=reasoning)
        if text:
            written += self._switch("message")
            self._sent["message"] += text
            scores = self._new_scores()
            place = self._place()
            written += self._event("response.output_text.delta", **place, content_index=0, delta=text, logprobs=scores)
        return written

    def end(self, *answers: Answered) -> str:
        """The rest, then the calls, then the whole response."""
        answer = answers[0]
        self._scored = [*answer.logprobs]
        rest, thought = unsent(answer.text, self._sent["message"]), unsent(answer.reasoning, self._sent["reasoning"])
        written = self.delta(rest, reasoning=thought)
        if not answer.calls and not self._sent["message"]:
            written += self._switch("message")  # an answer without words is an empty message
        written += self._close()
        for number, call in enumerate(answer.calls):
            item = _function_call(answer, number, self._id)
            started = {**item, "arguments": "", "status": "in_progress"}
            place = {"item_id": item["id"], "output_index": self._item}
            text = arguments_text(call)
            written += self._event("response.output_item.added", output_index=self._item, item=started)
            written += self._event("response.function_call_arguments.delta", **place, delta=text)
            written += self._event("response.function_call_arguments.done", **place, name=call.name, arguments=text)
            written += self._event("response.output_item.done", output_index=self._item, item=item)
            self._item += 1
        body = write_response(self._asked, answer, id=self._id, created=self._created)
        return written + self._event(f"response.{body['status']}", response=body)

    def fail(self, status: int, message: str) -> str:
        """The response has failed."""
        problem = openai_problem(status, message)["error"]
        return self._event("error", message=message, code=problem["type"], param=None)

    def _switch(self, kind: str) -> str:
        """Begin an item unless it is the open one."""
        if self._open == kind:
            return ""
        written, self._open = self._close(), kind
        written += self._event("response.output_item.added", output_index=self._item, item=self._begun(kind))
        return written + self._event(
            "response.content_part.added", **self._place(), content_index=0, part=_part(kind, "", None)
        )

    def _close(self) -> str:
        kind = self._open
        if not kind:
            return ""
        text, place = self._sent[kind], self._place()
        scores = None if self._asked.logprobs is None else write_logprobs(self._scored)["content"]
        part = _part(kind, text, scores)
        name = "output_text" if kind == "message" else "reasoning_text"
        more = {"logprobs": scores or []} if kind == "message" else {}
        written = self._event(f"response.{name}.done", **place, content_index=0, text=text, **more)
        written += self._event("response.content_part.done", **place, content_index=0, part=part)
        item = {**self._begun(kind), "status": "completed", "content": [part]}
        written += self._event("response.output_item.done", output_index=self._item, item=item)
        self._open, self._item = "", self._item + 1
        return written

    def _begun(self, kind: str) -> dict[str, Any]:
        return _item(kind, self._id, status="in_progress", content=[])

    def _place(self) -> dict[str, Any]:
        return {"item_id": _item_id(self._open, self._id), "output_index": self._item}

    def _new_scores(self) -> list[dict[str, Any]]:
        if self._asked.logprobs is None:
            return []
        new, self._scored_sent = self._scored[self._scored_sent :], len(self._scored)
        return write_logprobs(new)["content"]

    def _event(self, kind: str, **content: Any) -> str:
        written = event({"type": kind, "sequence_number": self._number, **content}, kind)
        self._number += 1
        return written


def _items(asked: Asked, answer: Answered, id: str) -> list[dict[str, Any]]:
    items = list[dict[str, Any]]()
    if answer.reasoning:
        part = _part("reasoning", answer.reasoning, None)
        items.append(_item("reasoning", id, status="completed", content=[part]))
    if answer.text or not answer.calls:
        scores = None if asked.logprobs is None else write_logprobs(answer.logprobs)["content"]
        content = [_part("message", answer.text, scores)]
        items.append(_item("message", id, status="completed", content=content))
    return items + [_function_call(answer, number, id) for number in range(len(answer.calls))]


def _item(kind: str, id: str, *, status: str, content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    more = {"role": "assistant"} if kind == "message" else {"summary": []}
    return {"id": _item_id(kind, id), "type": kind, "status": status, "content": list(content), **more}


def _item_id(kind: str, id: str) -> str:
    return f"{'msg' if kind == 'message' else 'rs'}_{id}"


def _part(kind: str, text: str, scores: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(scores or ())}


def _function_call(answer: Answered, number: int, id: str) -> dict[str, Any]:
    call = answer.calls[number]
    return {
        "id": f"fc_{id}_{number}",
        "type": "function_call",
        "call_id": f"call_{id}_{number}",
        "name": call.name,
        "arguments": arguments_text(call),
        "status": "completed",
    }


def _tool_choice(choice: str) -> Any:
    return choice if choice in ("auto", "none", "required") else {"type": "function", "name": choice}


def _usage(answer: Answered) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }
