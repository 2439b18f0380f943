"""Questions to a chat model that judges: each asked once in the life of a run, given up where no answer is clear."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Mapping, Sequence

from turnwise.chat_endpoint import ChatEndpoint
from turnwise.types import Turn

_UNCLEAR = 8
"""Answers without a verdict, and none with one, after which the judge is given up."""
_SHOWN = 200


class ChatQuestions:
    """Asks what `prompt` says, with its places filled in, and reads a number from the reply."""

    def __init__(
        self,
        *,
        url: str,
        model: str,
        prompt: str,
        places: Sequence[str],
        max_tokens: int,
        seconds: float,
        retries: int,
        concurrency: int,
    ) -> None:
        """`url` ends in /v1; `places` are the words in braces that the prompt must have."""
        braced = [f"{{{name}}}" for name in places]
        if missing := [name for name in braced if name not in prompt]:
            *most, last = braced
            raise ValueError(f"judge.prompt has no {missing[0]}; it must show {', '.join(most)} and {last}")
        if retries < 0 or seconds <= 0 or concurrency < 1 or max_tokens < 1:
            raise ValueError("judge: seconds, concurrency and max_tokens must be above 0, and retries at least 0")
        self._prompt = prompt
        try:
            options = {"temperature": 0, "max_tokens": max_tokens}
            self._model = ChatEndpoint(url, model=model, seconds=seconds, tries=retries + 1, options=options)
        except ValueError as error:
            raise ValueError(f"judge.url: {error}") from None
        self._known: dict[str, float | None] = {}
        self._lock = threading.Lock()

    def ask(self, parts: Mapping[str, str], read: Callable[[str], float | None], *, unclear: str) -> float | None:
        """What `read` makes of the reply; None is no verdict, and `unclear` says what the model fails to do."""
        # One pass over the template: an answer may itself contain such a word.
        names = "|".join(map(re.escape, parts))
        text = re.sub(rf"\{{({names})\}}", lambda found: parts[found[1]], self._prompt)
        key = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        if key not in self._known:
            said = self._said(text)
            self._note(key, read(said), said, unclear)
        return self._known[key]

    def _note(self, key: str, verdict: float | None, said: str, unclear: str) -> None:
        with self._lock:
            self._known[key] = verdict
            without = list(self._known.values()).count(None) if verdict is None else 0
            if without >= _UNCLEAR and without == len(self._known):
                raise ValueError(
                    f"judge: {self._model.model} {unclear.replace('{said}', repr(said[:_SHOWN]))} in judge.prompt, or "
                    "raise judge.max_tokens"
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


def request_of(task: object, turns: Sequence[Turn]) -> str:
    """What was asked: the first observation."""
    return turns[0].observation if turns else str(task)


def transcript(turns: Sequence[Turn]) -> str:
    """The answer; one of several turns with what was said in between."""
    if len(turns) < 2:
        return "".join(turn.action for turn in turns)
    lines = [f"Assistant: {turns[0].action}"]
    for turn in turns[1:]:
        lines += [f"User: {turn.observation}", f"Assistant: {turn.action}"]
    return "\n".join(lines)
