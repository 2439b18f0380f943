"""A program's call to the model that waits for its answer, and the answer that a model's raw text makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from turnwise.dialects.dialect import Answered, Asked, Said, Scored
from turnwise.dialects.replies import read_reply


@dataclass(kw_only=True, slots=True, eq=False)
class ModelCall:
    """What stands in `info["call"]` of an episode whose agent is a program; the policy leaves its answer here."""

    number: int
    """Which call of the episode it is, from 0."""
    asked: Asked
    answered: Answered | None = None
    """None: nobody has sampled, and the text of the action is the answer."""


def answer_of(
    text: str,
    asked: Asked,
    *,
    opening: str = "",
    finish: Literal["stop", "length"] = "stop",
    prompt_ids: Sequence[int] = (),
    cached: int = 0,
    ids: Sequence[int] = (),
    logprobs: Sequence[Scored] = (),
) -> Answered:
    """What a client is told of a model's raw text; `opening` is what the prompt has already written for the model."""
    said, stopped_by = cut_at_stop(opening + text, asked.stop)
    reply = read_reply(said, tools=bool(asked.tools) and asked.tool_choice != "none")
    return Answered(
        text=reply.text,
        reasoning=reply.reasoning,
        calls=reply.calls,
        finish="tool_calls" if reply.calls and finish == "stop" else finish,
        stopped_by=stopped_by,
        prompt_tokens=len(prompt_ids),
        cached_tokens=cached,
        completion_tokens=len(ids),
        ids=tuple(ids),
        prompt_ids=tuple(prompt_ids),
        logprobs=tuple(logprobs),
    )


def as_message(answered: Answered) -> Said:
    """The answer as the message that clients will echo."""
    return Said(role="assistant", text=answered.text, reasoning=answered.reasoning, calls=answered.calls)


def cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """The text before the first stop string, and which one it is."""
    found = [(place, stop) for stop in stops if (place := text.find(stop)) >= 0]
    if not found:
        return text, ""
    place, stop = min(found)
    return text[:place], stop
