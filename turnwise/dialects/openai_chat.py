"""OpenAI's chat format: `POST /v1/chat/completions`, with vLLM's fields for tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.dialects import body_fields as fields
from turnwise.dialects.chat_messages import read_message
from turnwise.dialects.dialect import Answered, Asked, Said, Scored
from turnwise.dialects.events import DONE, arguments_text, event, openai_problem, unsent

_UNMET = {
    "response_format": ({"type": "text"},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": (),
    "modalities": (["text"],),
    "functions": (),
    "audio": (),
    "web_search_options": (),
    "parallel_tool_calls": (True,),
}
"""Fields that would change the answer and that are not supported, with the values that ask for nothing."""
_KNOWN = (
    "model messages tools tool_choice max_tokens max_completion_tokens temperature top_p top_k min_p stop seed n "
    "stream stream_options logprobs top_logprobs return_token_ids user metadata store service_tier safety_identifier "
    "prompt_cache_key prompt_cache_retention reasoning_effort verbosity prediction function_call"
)
"""Every field of the format; those that only help to serve or to bill change no answer and are not read."""
_REASONING = ("reasoning_content", "reasoning", "thinking")
_MOST_ALTERNATIVES = 20


class OpenAIChat:
    """Reads and writes chat completions."""

    path = "/v1/chat/completions"

    def read(self, body: Mapping[str, Any]) -> Asked:
        """What a request asks; ValueError with the fix."""
        body = fields.require_body(body)
        messages = [_read_said(place, row) for place, row in enumerate(fields.rows(body, "messages"))]
        limit = fields.integer(body, "max_completion_tokens", least=1)
        tools, other_tools = _read_tools(fields.rows(body, "tools"))
        return Asked(
            model=fields.model_name(body),
            messages=fields.require_conversation(messages, name="messages"),
            tools=tools,
            tool_choice=read_tool_choice(body.get("tool_choice")),
            max_tokens=limit or fields.integer(body, "max_tokens", least=1),
            temperature=fields.number(body, "temperature", least=0, most=2),
            top_p=fields.number(body, "top_p", least=1e-9, most=1),
            top_k=fields.integer(body, "top_k", least=-1),
            min_p=fields.number(body, "min_p", least=0, most=0.999),
            stop=fields.stops(body, "stop"),
            seed=fields.seed(body),
            n=fields.choices(body),
            stream=fields.flag(body, "stream"),
            stream_usage=fields.flag(fields.options(body, "stream_options"), "include_usage"),
            logprobs=_read_logprobs(body),
            return_token_ids=fields.flag(body, "return_token_ids"),
            unmet=(*fields.set_fields(body, _UNMET), *other_tools),
            unknown=fields.unknown(body, _KNOWN, _UNMET),
        )

    def write(self, asked: Asked, *answers: Answered, id: str, created: int) -> dict[str, Any]:
        """The body of a whole answer."""
        body = {
            **_head(asked, id, created, "chat.completion"),
            "choices": [_choice(asked, place, each, id) for place, each in enumerate(answers)],
            "usage": usage(answers),
        }
        if asked.return_token_ids:
            body["prompt_token_ids"] = list(answers[0].prompt_ids)
        return body

    def stream(self, asked: Asked, *, id: str, created: int) -> ChatStream:
        """A writer for a streamed answer."""
        return ChatStream(asked, id=id, created=created)

    def problem(self, status: int, message: str, code: str = "") -> dict[str, Any]:
        """The body of an error."""
        return openai_problem(status, message, code)


class ChatStream:
    """Writes chunks of a chat completion."""

    def __init__(self, asked: Asked, *, id: str, created: int) -> None:
        self._asked, self._id = asked, id
        self._head = _head(asked, id, created, "chat.completion.chunk")
        self._text, self._reasoning, self._tokens = [""] * asked.n, [""] * asked.n, [0] * asked.n

    def begin(self) -> str:
        """One chunk per answer, which names the role."""
        chunks = (self._chunk(place, {"role": "assistant", "content": ""}) for place in range(self._asked.n))
        return "".join(event(chunk) for chunk in chunks)

    def delta(
        self,
        text: str = "",
        *,
        reasoning: str = "",
        choice: int = 0,
        ids: Sequence[int] = (),
        logprobs: Sequence[Scored] = (),
    ) -> str:
        """The next part of one answer."""
        self._text[choice] += text
        self._reasoning[choice] += reasoning
        self._tokens[choice] += len(ids)
        said = {**({"reasoning_content": reasoning} if reasoning else {}), **({"content": text} if text else {})}
        wants_tokens = bool(ids) and (self._asked.return_token_ids or self._asked.logprobs is not None)
        if not said and not wants_tokens:
            return ""
        return event(self._chunk(choice, said, ids=ids, logprobs=logprobs))

    def end(self, *answers: Answered) -> str:
        """The rest of each answer, its calls, and why it ended; then the usage, if it was asked for."""
        written = "".join(self._end_of(place, answer) for place, answer in enumerate(answers))
        if self._asked.stream_usage:
            written += event({**self._head, "choices": [], "usage": usage(answers)})
        return written + DONE

    def fail(self, status: int, message: str) -> str:
        """An error in place of the next chunk."""
        return event(openai_problem(status, message)) + DONE

    def _end_of(self, choice: int, answer: Answered) -> str:
        sent = self._tokens[choice]
        written = self.delta(
            unsent(answer.text, self._text[choice]),
            reasoning=unsent(answer.reasoning, self._reasoning[choice]),
            choice=choice,
            ids=answer.ids[sent:],
            logprobs=answer.logprobs[sent:],
        )
        for number, call in enumerate(_write_calls(answer, choice, self._id)):
            written += event(self._chunk(choice, {"tool_calls": [{"index": number, **call}]}))
        last = self._chunk(choice, {}, finish=answer.finish)
        if self._asked.return_token_ids:
            last["prompt_token_ids"] = list(answer.prompt_ids)
        return written + event(last)

    def _chunk(
        self,
        choice: int,
        said: Mapping[str, Any],
        *,
        finish: str | None = None,
        ids: Sequence[int] = (),
        logprobs: Sequence[Scored] = (),
    ) -> dict[str, Any]:
        row: dict[str, Any] = {"index": choice, "delta": dict(said), "logprobs": None, "finish_reason": finish}
        if self._asked.logprobs is not None and logprobs:
            row["logprobs"] = write_logprobs(logprobs)
        if self._asked.return_token_ids and ids:
            row["token_ids"] = list(ids)
        return {**self._head, "choices": [row]}


def usage(answers: Sequence[Answered]) -> dict[str, Any]:
    """The tokens of a request, whose answers share one prompt."""
    prompt, said = answers[0].prompt_tokens, sum(answer.completion_tokens for answer in answers)
    cached = {"cached_tokens": answers[0].cached_tokens}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": said,
        "total_tokens": prompt + said,
        "prompt_tokens_details": cached,
    }


def write_logprobs(logprobs: Sequence[Scored]) -> dict[str, Any]:
    """Tokens with their log-probs, in the chat format's form."""
    return {"content": [{**_scored(each), "top_logprobs": [_scored(top) for top in each.top]} for each in logprobs]}


def read_tool_choice(choice: Any) -> str:
    """auto, none, required, or the name of a tool; both of OpenAI's forms."""
    if choice is None:
        return "auto"
    if choice in ("auto", "none", "required"):
        return choice
    function = choice.get("function", choice) if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError('tool_choice must be "auto", "none", "required", or a function with a name')
    return name


def _read_said(place: int, row: Any) -> Said:
    """One message; what clients may send and chat files may not is put right first."""
    row = dict(row) if isinstance(row, dict) else row
    reasoning = ""
    if isinstance(row, dict):
        reasoning = next((row[name] for name in _REASONING if isinstance(row.get(name), str)), "")
        row = {name: value for name, value in row.items() if name not in (*_REASONING, "weight", "audio")}
        row["role"] = "system" if row.get("role") == "developer" else row.get("role")
        row["content"] = row.get("content") or row.pop("refusal", None) or ("" if not row.get("tool_calls") else None)
        row.pop("refusal", None)
        if row["role"] == "assistant" and not row["content"] and not row.get("tool_calls"):
            return Said(role="assistant", reasoning=reasoning)  # the model said nothing, and the client echoes it
        row["tool_calls"] = _with_arguments(row.get("tool_calls"))
    message = read_message(place, row)
    return Said(
        role=message.role,
        text=message.content,
        reasoning=reasoning,
        calls=message.calls,
        call_ids=message.call_ids,
        call_id=message.fields.get("tool_call_id", ""),
    )


def _with_arguments(calls: Any) -> Any:
    """Some clients write the arguments of a call that has none as an empty text."""
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and function.get("arguments") == "":
            function["arguments"] = "{}"
    return calls


def _read_tools(rows: Sequence[Any]) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    """The functions, and the kinds of tools that are none."""
    tools, others = list[Mapping[str, Any]](), list[str]()
    for place, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(f"tool {place} is not an object")
        if row.get("type", "function") != "function":
            others.append(f"tools of type {str(row['type'])[:60]}")
            continue
        function = row.get("function")
        if not isinstance(function, dict):
            raise ValueError(f'tool {place} has no function; send {{"type": "function", "function": {{"name": ...}}}}')
        tool = (function.get("name"), function.get("description"), function.get("parameters"))
        tools.append(fields.function_tool(place, *tool))
    return tuple(tools), tuple(others)


def _read_logprobs(body: Mapping[str, Any]) -> int | None:
    wanted = fields.flag(body, "logprobs")
    alternatives = fields.integer(body, "top_logprobs", least=0, most=_MOST_ALTERNATIVES)
    if alternatives and not wanted:
        raise ValueError("top_logprobs needs logprobs: true")
    return (alternatives or 0) if wanted else None


def _head(asked: Asked, id: str, created: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{id}", "object": kind, "created": created, "model": asked.model}


def _choice(asked: Asked, place: int, answer: Answered, id: str) -> dict[str, Any]:
    calls = _write_calls(answer, place, id)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if calls and not answer.text else answer.text,
        "refusal": None,
    }
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if calls:
        message["tool_calls"] = calls
    choice: dict[str, Any] = {"index": place, "message": message, "finish_reason": answer.finish}
    choice["logprobs"] = None if asked.logprobs is None else write_logprobs(answer.logprobs)
    if asked.return_token_ids:
        choice["token_ids"] = list(answer.ids)
    return choice


def _write_calls(answer: Answered, place: int, id: str) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{id}_{place}_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call)},
        }
        for number, call in enumerate(answer.calls)
    ]


def _scored(token: Scored) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.raw), "token_id": token.id}


openai_chat = OpenAIChat()
