"""One line of a preference file: the prompt, its answers, and how good each is. A mistake is named with its fix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, takewhile
from typing import Any

from turnwise.dialects.chat_messages import ChatMessage
from turnwise.sources.chat_lines import as_messages, read_messages, read_tools

FORM = '{"prompt": "...", "chosen": "...", "rejected": "..."}'
_FORMS = {
    "chosen": FORM,
    "rejected": FORM,
    "ranked": '{"prompt": "...", "ranked": ["best", "...", "worst"]}',
    "answers": '{"prompt": "...", "answers": [{"content": "...", "score": 0.5}, ...]}',
}


@dataclass(frozen=True, kw_only=True)
class ComparedAnswers:
    """Answers to one prompt, compared."""

    prompt: list[ChatMessage]
    answers: list[list[ChatMessage]]
    rewards: list[float]
    wins: list[list[float]] | None = None
    """The probability that the answer of the row beats that of the column, where the line has it."""
    tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


@dataclass(frozen=True, kw_only=True)
class _Answer:
    name: str
    """As messages call it."""
    rows: list[Any]
    reward: float


def read_comparison(row: Any) -> ComparedAnswers:
    """The comparison of a line; ValueError with the fix."""
    answers = _answers(row)
    prompt, rests = _divided(row, answers)
    for (one, rest), (other, same) in combinations(zip(answers, rests, strict=True), 2):
        if rest == same:
            raise ValueError(f"{one.name} and {other.name} are equal, so there is nothing to prefer; remove the line")
    read = [_read(answer.name, prompt, rest) for answer, rest in zip(answers, rests, strict=True)]
    return ComparedAnswers(
        prompt=read[0][: len(prompt)],
        answers=[messages[len(prompt) :] for messages in read],
        rewards=[answer.reward for answer in answers],
        wins=_wins(row),
        tools=read_tools(row),
    )


def _answers(row: Any) -> list[_Answer]:
    """The answers in whichever form the line has them."""
    said = [key for key in ("chosen", "ranked", "answers") if isinstance(row, dict) and key in row]
    if len(said) > 1:
        raise ValueError(f"it has {' and '.join(said)}; keep one of them")
    if said == ["ranked"]:
        listed = _listed(row["ranked"], "ranked")
        last = len(listed) - 1
        return [_answer(f"ranked.{place}", each, 1 - place / last) for place, each in enumerate(listed)]
    if said == ["answers"]:
        listed = _listed(row["answers"], "answers")
        scored = [_scored(f"answers.{place}", each) for place, each in enumerate(listed)]
        if len({answer.reward for answer in scored}) == 1:
            raise ValueError("all answers have the same score, so there is nothing to prefer; remove the line")
        return scored
    if not isinstance(row, dict) or not row.keys() >= {"chosen", "rejected"}:
        raise ValueError(f"chosen or rejected is missing; write {FORM}, or ranked or answers with scores")
    return [_answer("chosen", row["chosen"], 1.0), _answer("rejected", row["rejected"], 0.0)]


def _listed(value: Any, key: str) -> list[Any]:
    if not isinstance(value, list) or len(value) < 2:
        raise ValueError(f"{key} is not a list of two answers or more; write {_FORMS[key]}")
    return value


def _scored(name: str, value: Any) -> _Answer:
    if not isinstance(value, dict) or not value.keys() >= {"content", "score"}:
        raise ValueError(f"{name} has no content or no score; write {_FORMS['answers']}")
    return _answer(name, value["content"], _number(f"{name}.score", value["score"]))


def _answer(name: str, value: Any, reward: float) -> _Answer:
    rows = as_messages(name, value, "assistant")
    if not rows or any(isinstance(each, dict) and each.get("content") == "" for each in rows[-1:]):
        raise ValueError(f"{name} is empty; fill it in, or remove the line")
    return _Answer(name=name, rows=rows, reward=reward)


def _divided(row: dict[str, Any], answers: Sequence[_Answer]) -> tuple[list[Any], list[list[Any]]]:
    """The messages of the prompt, and what each answer adds to it."""
    said = row.get("prompt", row.get("messages"))
    whole = [answer.rows for answer in answers]
    if not said:
        shared = takewhile(lambda each: all(one == each[0] for one in each), zip(*whole, strict=False))
        prompt = [first for first, *_ in shared]
        if prompt and _role(prompt[-1]) == "assistant":  # equal answers, or answers that begin alike
            prompt.pop()
    else:
        prompt = as_messages("the prompt", said, "user")
    if not prompt or _role(prompt[-1]) != "user":
        raise ValueError(f"the prompt must end with a message of the user; write {FORM}")
    return prompt, [_rest(answer, prompt, given=bool(said)) for answer in answers]


def _rest(answer: _Answer, prompt: list[Any], *, given: bool) -> list[Any]:
    """The answer without the prompt, which a whole chat repeats."""
    if given and _role(answer.rows[0]) == "assistant":
        return answer.rows
    if answer.rows[: len(prompt)] != prompt:
        raise ValueError(
            f"{answer.name} does not begin with the prompt; begin it with a message of the assistant, or repeat the "
            "whole prompt word for word"
        )
    rest = answer.rows[len(prompt) :]
    if not rest or _role(rest[0]) != "assistant":
        raise ValueError(f"{answer.name} must begin with a message of the assistant, after the prompt")
    return rest


def _read(name: str, prompt: list[Any], rest: list[Any]) -> list[ChatMessage]:
    if _role(rest[-1]) != "assistant":
        raise ValueError(f"{name} must end with a message of the assistant; remove what follows it")
    try:
        return read_messages([*prompt, *rest])
    except ValueError as error:
        raise ValueError(f"{name} after the prompt: {error}") from None


def _wins(row: dict[str, Any]) -> list[list[float]] | None:
    if row.get("probability") is None:
        return None
    if "chosen" not in row:
        raise ValueError("probability belongs to a pair of chosen and rejected; remove it, or write such a pair")
    probability = _number("probability", row["probability"])
    if not 0 <= probability <= 1:
        raise ValueError(f"probability is {probability:g}; write the chance that chosen wins, from 0 to 1")
    return [[0.5, probability], [1 - probability, 0.5]]


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}; write a finite number")
    return float(value)


def _role(row: Any) -> Any:
    return row.get("role") if isinstance(row, dict) else None
