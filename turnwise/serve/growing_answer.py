"""An answer while it is being sampled: what of its text is certain, and the whole of it at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.dialects.asgi import RefusedError
from turnwise.dialects.dialect import Answered, Asked, Scored
from turnwise.dialects.model_call import answer_of, cut_at_stop
from turnwise.dialects.replies import ReplyParts, overlap
from turnwise.engine.contract import Completion, Finish
from turnwise.policy.rendering import Renderer

_UNFINISHED = "\ufffd"
"""How a tokenizer writes the beginning of a character."""


@dataclass(frozen=True, kw_only=True)
class SaidPart:
    """What has become certain with some tokens."""

    text: str
    reasoning: str
    ids: Sequence[int]
    logprobs: Sequence[Scored]


class GrowingAnswer:
    """Takes tokens as they are sampled. What it has said is always the beginning of what `whole` will say."""

    def __init__(self, asked: Asked, renderer: Renderer) -> None:
        self._asked, self._renderer = asked, renderer
        calls = bool(asked.tools) and asked.tool_choice != "none"
        self._parts = None if asked.prompts else ReplyParts(tools=calls)
        self._ids = list[int]()
        self._read = self._said = 0
        self._pending = renderer.opening if self._parts else ""
        self._stopped = False

    def push(self, sampled: Sequence[Scored]) -> SaidPart:
        """More tokens."""
        self._ids += [each.id for each in sampled]
        self._pending += self._new_text()
        certain = self._before_stops()
        text, reasoning = self._parts.push(certain) if self._parts else (certain, "")
        return SaidPart(text=text, reasoning=reasoning, ids=[each.id for each in sampled], logprobs=sampled)

    def _new_text(self) -> str:
        """The text of new tokens, unless they end within a character. The token that ends a turn has none."""
        ids = self._ids[:-1] if self._ids and self._ids[-1] in self._renderer.stop_ids else self._ids
        # A tokenizer may write a token differently at the start of a text, so decode it with those before it.
        before, after = self._renderer.decode(ids[self._read : self._said]), self._renderer.decode(ids[self._read :])
        if after.endswith(_UNFINISHED) or len(after) <= len(before):
            return ""
        self._read, self._said = self._said, len(ids)
        return after[len(before) :]

    def _before_stops(self) -> str:
        """The pending text that no stop string can reach any more."""
        if self._stopped:
            return ""
        text, stop = cut_at_stop(self._pending, self._asked.stop)
        if stop:
            self._stopped = True
            return text
        held = max((overlap(text, each) for each in self._asked.stop), default=0)
        self._pending = text[len(text) - held :]
        return text[: len(text) - held]

    def whole(self, completion: Completion, prompt_ids: Sequence[int], logprobs: Sequence[Scored]) -> Answered:
        """The answer that the tokens make."""
        if completion.finish is Finish.CANCELLED:
            raise RefusedError(503, "the server is being stopped")
        ids, finish = completion.ids, "stop" if completion.finish is Finish.STOP else "length"
        text = self._renderer.decode(ids[:-1] if ids and ids[-1] in self._renderer.stop_ids else ids)
        scored = logprobs if self._asked.logprobs is not None else ()
        if not self._asked.prompts:
            opening = self._renderer.opening
            return answer_of(
                text, self._asked, opening=opening, finish=finish, prompt_ids=prompt_ids, ids=ids, logprobs=scored
            )
        said, stopped_by = cut_at_stop(text, self._asked.stop)
        return Answered(
            text=said,
            finish=finish,
            stopped_by=stopped_by,
            prompt_tokens=len(prompt_ids),
            completion_tokens=len(ids),
            ids=tuple(ids),
            prompt_ids=tuple(prompt_ids),
            logprobs=tuple(scored),
        )


def score(renderer: Renderer, token: int, logprob: float, top: Sequence[tuple[int, float]]) -> Scored:
    """A sampled token in the form that dialects write."""
    others = tuple(score(renderer, other, value, ()) for other, value in top)
    text = renderer.decode([token])
    raw = b"" if _UNFINISHED in text else text.encode()
    return Scored(id=token, text=text, logprob=logprob, raw=raw, top=others)


def score_all(renderer: Renderer, completion: Completion) -> list[Scored]:
    """All tokens of an answer."""
    tops = completion.top or [()] * len(completion.ids)
    rows = zip(completion.ids, completion.logprobs, tops, strict=True)
    return [score(renderer, token, logprob, top) for token, logprob, top in rows]
