"""A chat model behind an OpenAI-compatible endpoint as a judge."""

from __future__ import annotations

import hashlib
import re
import threading
from typing import Any

from turnwise.chat_endpoint import ChatEndpoint
from turnwise.types import Trajectory

PROMPT = """Compare two answers to the same request.

Request:
{task}

Answer A:
{first}

Answer B:
{second}

Which answer is better? Reply with one letter: A, B, or C if they are equally good."""
"""What the model is asked unless the recipe says otherwise."""
_LETTER = re.compile(r"\b[ABC]\b")
_CHANCES = {"A": 1.0, "B": 0.0, "C": 0.5}
_UNCLEAR = 8
"""Answers without a verdict, and none with one, after which the judge is given up."""
_SHOWN = 200


class ChatJudge:
    """Asks a chat model which answer is better, once in either order, so that its liking for a place cancels out.

    An answer that names neither counts as a tie. Equal questions are asked once in the life of a run.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        prompt: str = PROMPT,
        max_tokens: int = 16,
        seconds: float = 60.0,
        retries: int = 4,
        concurrency: int = 8,
    ) -> None:
        """`url` ends in /v1; `seconds` is the limit of one request."""
        if missing := [name for name in ("{task}", "{first}", "{second}") if name not in prompt]:
            raise ValueError(f"judge.prompt has no {missing[0]}; it must show {{task}}, {{first}} and {{second}}")
        if retries < 0 or seconds <= 0 or concurrency < 1 or max_tokens < 1:
            raise ValueError("judge: seconds, concurrency and max_tokens must be above 0, and retries at least 0")
        self.concurrency = concurrency
        self._prompt = prompt
        try:
            options = {"temperature": 0, "max_tokens": max_tokens}
            self._model = ChatEndpoint(url, model=model, seconds=seconds, tries=retries + 1, options=options)
        except ValueError as error:
            raise ValueError(f"judge.url: {error}") from None
        self._known: dict[str, float | None] = {}
        self._lock = threading.Lock()

    def prefer(self, task: Any, first: Trajectory, second: Trajectory) -> float:
        """The mean of what the model says in either order."""
        request = first.turns[0].observation if first.turns else str(task)
        one, other = _transcript(first), _transcript(second)
        return (self._ask(request, one, other) + 1 - self._ask(request, other, one)) / 2

    def _ask(self, task: str, first: str, second: str) -> float:
        """The chance that the first one is better, as the model sees it."""
        parts = {"{task}": task, "{first}": first, "{second}": second}
        # One pass over the template: an answer may itself contain such a word.
        text = re.sub(r"\{(?:task|first|second)\}", lambda found: parts[found[0]], self._prompt)
        key = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        if key not in self._known:
            said = self._said(text)
            named = set(_LETTER.findall(said))
            # "A close call, but B" and "B is better than A" name both: only one letter alone is a verdict.
            self._note(key, _CHANCES[named.pop()] if len(named) == 1 else None, said)
        chance = self._known[key]
        return 0.5 if chance is None else chance

    def _note(self, key: str, chance: float | None, said: str) -> None:
        with self._lock:
            self._known[key] = chance
            unclear = list(self._known.values()).count(None) if chance is None else 0
            if unclear >= _UNCLEAR and unclear == len(self._known):
                raise ValueError(
                    f"judge: {self._model.model} names no better answer, it says {said[:_SHOWN]!r}; ask for A, B or C "
                    "in judge.prompt, or raise judge.max_tokens"
                )

    def _said(self, text: str) -> str:
        """The model's words; ValueError when the endpoint does not give any."""
        try:
            return self._model.reply([{"role": "user", "content": text}])
        except ConnectionError as error:
            seconds, retries = self._model.seconds, self._model.tries - 1
            raise ValueError(
                f"judge: {error} Check judge.url and judge.model, or raise judge.seconds ({seconds:g}) and "
                f"judge.retries ({retries}), then resume"
            ) from error


def _transcript(trajectory: Trajectory) -> str:
    """The answer; one of several turns with what was said in between."""
    turns = trajectory.turns
    if len(turns) < 2:
        return "".join(turn.action for turn in turns)
    lines = [f"Assistant: {turns[0].action}"]
    for turn in turns[1:]:
        lines += [f"User: {turn.observation}", f"Assistant: {turn.action}"]
    return "\n".join(lines)
