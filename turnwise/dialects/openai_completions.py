"""OpenAI's older completion format: `POST /v1/completions` continues texts, or tokens, as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.dialects import body_fields as fields
from turnwise.dialects.dialect import Answered, Asked, Scored
from turnwise.dialects.events import DONE, event, openai_problem, unsent
from turnwise.dialects.openai_chat import usage

_UNMET = {
    "suffix": ("",),
    "echo": (False,),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": (),
    "response_format": ({"type": "text"},),
}
"""Fields that would change the answer and that are not supported, with the values that ask for nothing."""
_KNOWN = (
    "model prompt max_tokens temperature top_p top_k min_p stop seed n stream stream_options logprobs "
    "return_token_ids user"
)
_USUAL_TOKENS, _MOST_PROMPTS, _MOST_ALTERNATIVES = 16, 128, 20


class OpenAICompletions:
    """Reads and writes completions."""

    path = "/v1/completions"

    def read(self, body: Mapping[str, Any]) -> Asked:
        """What a request asks; ValueError with the fix."""
        body = fields.require_body(body)
        return Asked(
            model=fields.model_name(body),
            messages=(),
            prompts=_read_prompts(body.get("prompt")),
            max_tokens=fields.integer(body, "max_tokens", least=1) or _USUAL_TOKENS,
            temperature=fields.number(body, "temperature", least=0, most=2),
            top_p=fields.number(body, "top_p", least=1e-9, most=1),
            top_k=fields.integer(body, "top_k", least=-1),
            min_p=fields.number(body, "min_p", least=0, most=0.999),
            stop=fields.stops(body, "stop"),
            seed=fields.seed(body),
            n=fields.choices(body),
            stream=fields.flag(body, "stream"),
            stream_usage=fields.flag(fields.options(body, "stream_options"), "include_usage"),
            logprobs=fields.integer(body, "logprobs", least=0, most=_MOST_ALTERNATIVES),
            return_token_ids=fields.flag(body, "return_token_ids"),
            unmet=fields.set_fields(body, _UNMET),
            unknown=fields.unknown(body, _KNOWN, _UNMET),
        )

    def write(self, asked: Asked, *answers: Answered, id: str, created: int) -> dict[str, Any]:
        """The body of a whole answer; the answers to one prompt follow each other."""
        choices = [_choice(asked, place, answer) for place, answer in enumerate(answers)]
        return {**_head(asked, id, created), "choices": choices, "usage": _usage(asked, answers)}

    def stream(self, asked: Asked, *, id: str, created: int) -> CompletionsStream:
        """A writer for a streamed answer."""
        return CompletionsStream(asked, id=id, created=created)

    def problem(self, status: int, message: str, code: str = "") -> dict[str, Any]:
        """The body of an error."""
        return openai_problem(status, message, code)


class CompletionsStream:
    """Writes chunks of a completion."""

    def __init__(self, asked: Asked, *, id: str, created: int) -> None:
        self._asked, self._head = asked, _head(asked, id, created)
        choices = asked.n * len(asked.prompts)
        self._text, self._tokens = [""] * choices, [0] * choices

    def begin(self) -> str:
        """Nothing comes before the first token."""
        return ""

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
        start = len(self._text[choice])
        self._text[choice] += text
        self._tokens[choice] += len(ids)
        wants_tokens = bool(ids) and (self._asked.return_token_ids or self._asked.logprobs is not None)
        if not text and not wants_tokens:
            return ""
        row: dict[str, Any] = {"index": choice, "text": text, "logprobs": None, "finish_reason": None}
        if self._asked.logprobs is not None and logprobs:
            row["logprobs"] = _logprobs(logprobs, start)
        if self._asked.return_token_ids and ids:
            row["token_ids"] = list(ids)
        return event({**self._head, "choices": [row]})

    def end(self, *answers: Answered) -> str:
        """The rest of each answer and why it ended; then the usage, if it was asked for."""
        written = ""
        for place, answer in enumerate(answers):
            rest, sent = unsent(answer.text, self._text[place]), self._tokens[place]
            written += self.delta(rest, choice=place, ids=answer.ids[sent:], logprobs=answer.logprobs[sent:])
            row: dict[str, Any] = {"index": place, "text": "", "logprobs": None, "finish_reason": answer.finish}
            if self._asked.return_token_ids:
                row["prompt_token_ids"] = list(answer.prompt_ids)
            written += event({**self._head, "choices": [row]})
        if self._asked.stream_usage:
            written += event({**self._head, "choices": [], "usage": _usage(self._asked, answers)})
        return written + DONE

    def fail(self, status: int, message: str) -> str:
        """An error in place of the next chunk."""
        return event(openai_problem(status, message)) + DONE


def _read_prompts(given: Any) -> tuple[str | tuple[int, ...], ...]:
    """A text, a list of texts, tokens, or a list of lists of tokens."""
    rows = [given] if isinstance(given, str) or _are_tokens(given) else given
    if not isinstance(rows, list) or not rows or not all(isinstance(row, str) or _are_tokens(row) for row in rows):
        raise ValueError("prompt must be a text, a list of texts, a list of tokens, or a list of such lists")
    if len(rows) > _MOST_PROMPTS:
        raise ValueError(f"prompt has {len(rows)} texts; send at most {_MOST_PROMPTS} at once")
    return tuple(row if isinstance(row, str) else tuple(row) for row in rows)


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


def _choice(asked: Asked, place: int, answer: Answered) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": place, "text": answer.text, "finish_reason": answer.finish}
    choice["logprobs"] = None if asked.logprobs is None else _logprobs(answer.logprobs, 0)
    if asked.return_token_ids:
        choice |= {"prompt_token_ids": list(answer.prompt_ids), "token_ids": list(answer.ids)}
    return choice


def _logprobs(logprobs: Sequence[Scored], start: int) -> dict[str, Any]:
    offsets, place = list[int](), start
    for each in logprobs:
        offsets.append(place)
        place += len(each.text)
    return {
        "tokens": [each.text for each in logprobs],
        "token_logprobs": [each.logprob for each in logprobs],
        "top_logprobs": [{top.text: top.logprob for top in each.top} for each in logprobs],
        "text_offset": offsets,
    }


def _usage(asked: Asked, answers: Sequence[Answered]) -> dict[str, Any]:
    """The sum over all prompts."""
    parts = [usage(answers[place : place + asked.n]) for place in range(0, len(answers), asked.n)]
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {name: sum(part[name] for part in parts) for name in names}


def _head(asked: Asked, id: str, created: int) -> dict[str, Any]:
    return {"id": f"cmpl-{id}", "object": "text_completion", "created": created, "model": asked.model}


openai_completions = OpenAICompletions()
