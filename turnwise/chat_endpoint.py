"""A chat model behind an OpenAI-compatible address: one question, one answer, with the standard library alone."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
"""Seconds before the second try, doubled for each further one; and the most."""
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Answers after which another try may succeed."""
_LONGEST = 2**22
"""Bytes of an answer."""
_SHOWN = 200
_HOME = "https://api.openai.com/v1"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would take the key to another server."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Follow none: the answer's status becomes the error."""


class ChatEndpoint:
    """`ChatEndpoint("http://127.0.0.1:8000/v1", model="my-model").reply([{"role": "user", "content": "Hello"}])`.

    `options` go into every request, such as `temperature`. The key in `OPENAI_API_KEY` is sent only to the server of
    `OPENAI_BASE_URL` (by default OpenAI's own): a recipe must not be able to send it elsewhere.
    """

    def __init__(
        self, url: str, *, model: str, seconds: float = 60.0, tries: int = 3, options: Mapping[str, Any] | None = None
    ) -> None:
        """`seconds` is the limit of one try."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"{url!r} is not an address such as http://127.0.0.1:8000/v1")
        self.url = url.rstrip("/").removesuffix("/chat/completions")
        self.model, self.seconds, self.tries, self.options = model, seconds, tries, dict(options or {})

    def reply(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The text of the model's answer to a chat; ConnectionError if there is none after all tries."""
        text = self.complete(messages, **options).get("content")
        return text if isinstance(text, str) else ""

    def complete(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        """The whole answer, with its `tool_calls` if `tools` were given; ConnectionError as above."""
        body = {"model": self.model, "messages": [dict(each) for each in messages], **self.options, **options}
        error = ""
        for attempt in range(self.tries):
            if attempt:
                time.sleep(min(_PAUSE * 2 ** (attempt - 1), _LONGEST_PAUSE))
            try:
                return self._ask(body)
            except urllib.error.HTTPError as refusal:
                said = " ".join(refusal.read(_SHOWN).decode(errors="replace").split())
                error = f"status {refusal.code}: {said}"
                if refusal.code not in _PASSING:
                    break
            except (OSError, HTTPException) as failure:  # no connection, none in time, or one that broke
                error = str(failure) or type(failure).__name__
        raise ConnectionError(
            f"{self.url} gave no answer ({error}); is the server up, and is {self.model!r} its model?"
        )

    def _ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url}/chat/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **self._authority()},
        )
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=self.seconds) as answer:
            content = answer.read(_LONGEST)
        try:
            message = json.loads(content)["choices"][0]["message"]
            return {"content": message["content"], **message}
        except (ValueError, LookupError, TypeError) as error:
            raise ConnectionError(f"{self.url} answered in another form ({error!r}): {content[:_SHOWN]!r}") from error

    def _authority(self) -> dict[str, str]:
        home, key = os.environ.get("OPENAI_BASE_URL") or _HOME, os.environ.get("OPENAI_API_KEY")
        same = urlsplit(home)[:2] == urlsplit(self.url)[:2]
        return {"Authorization": f"Bearer {key}"} if key and same else {}
