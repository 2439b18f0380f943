"""A chat model behind an OpenAI-compatible address: one question, one answer, with the standard library alone."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.parse import urlsplit

_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
"""Seconds before the second try, doubled for each further one; and the most."""
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Answers after which another try may succeed."""
_LONGEST = 2**22
"""Bytes of an answer."""
_SHOWN = 200
Value = TypeVar("Value")
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
        self,
        url: str,
        *,
        model: str = "",
        seconds: float = 60.0,
        tries: int = 3,
        options: Mapping[str, Any] | None = None,
        key: str = "",
    ) -> None:
        """`seconds` is the limit of one try; `key` is sent to this address whatever the environment says. Without a
        `model`, the server must have exactly one."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"{url!r} is not an address such as http://127.0.0.1:8000/v1")
        self.url = url.rstrip("/").removesuffix("/chat/completions")
        self.seconds, self.tries, self.options, self._key = seconds, tries, dict(options or {}), key
        self.model = model or self._only_model()

    def reply(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The text of the model's answer to a chat; ConnectionError if there is none after all tries."""
        text = self.complete(messages, **options).get("content")
        return text if isinstance(text, str) else ""

    def complete(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        """The whole answer, with its `tool_calls` if `tools` were given, and its `finish_reason`; ConnectionError as
        above."""
        return self._try(lambda: self._ask(self._body(messages, options)))

    def stream(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Iterator[str]:
        """The text of the answer as it comes; ConnectionError if it breaks off."""
        body = {**self._body(messages, options), "stream": True}
        answer = self._try(lambda: self._open("/chat/completions", body))
        try:
            with answer:
                for line in answer:
                    if text := _text_in(line.decode(errors="replace").strip()):
                        yield text
        except (OSError, HTTPException) as failure:
            raise ConnectionError(f"{self.url} broke off ({failure})") from failure

    def _body(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "messages": [dict(each) for each in messages], **self.options, **options}

    def _try(self, work: Callable[[], Value]) -> Value:
        error = ""
        for attempt in range(self.tries):
            if attempt:
                time.sleep(min(_PAUSE * 2 ** (attempt - 1), _LONGEST_PAUSE))
            try:
                return work()
            except urllib.error.HTTPError as refusal:
                error = f"status {refusal.code}: {_said_by(refusal.read(_LONGEST))}"
                if refusal.code in (400, 413, 422):
                    raise ConnectionError(f"{self.url} refused the request ({error})") from refusal
                if refusal.code not in _PASSING:
                    break
            except (OSError, HTTPException) as failure:  # no connection, none in time, or one that broke
                error = str(failure) or type(failure).__name__
        asked = f", and is {self.model!r} its model" if hasattr(self, "model") else ""
        raise ConnectionError(f"{self.url} gave no answer ({error}); is the server up{asked}?")

    def _only_model(self) -> str:
        try:
            with self._try(lambda: self._open("/models")) as answer:
                names = [str(row["id"]) for row in json.loads(answer.read(_LONGEST))["data"]]
        except ConnectionError as error:
            raise ValueError(str(error)) from error
        except (ValueError, LookupError, TypeError):
            names = []
        if len(names) != 1:
            some = f" one of {', '.join(names[:8])}" if names else ""
            raise ValueError(f"{self.url} needs the name of a model; add --model NAME{some}")
        return names[0]

    def _ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        with self._open("/chat/completions", body) as answer:
            content = answer.read(_LONGEST)
        try:
            choice = json.loads(content)["choices"][0]
            message = choice["message"]
            return {"content": message["content"], **message, "finish_reason": choice.get("finish_reason")}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConnectionError(f"{self.url} answered in another form ({error!r}): {content[:_SHOWN]!r}") from error

    def _open(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **self._authority()},
        )
        return urllib.request.build_opener(_NoRedirect).open(request, timeout=self.seconds)

    def _authority(self) -> dict[str, str]:
        if self._key:
            return {"Authorization": f"Bearer {self._key}"}
        home, key = os.environ.get("OPENAI_BASE_URL") or _HOME, os.environ.get("OPENAI_API_KEY")
        same = urlsplit(home)[:2] == urlsplit(self.url)[:2]
        return {"Authorization": f"Bearer {key}"} if key and same else {}


def _text_in(line: str) -> str:
    """The text of one line of a stream; lines in another form have none."""
    if not line.startswith("data:"):
        return ""
    try:
        content = json.loads(line.removeprefix("data:"))
    except ValueError:  # [DONE]
        return ""
    if isinstance(content, dict) and isinstance(content.get("error"), dict):
        raise ConnectionError(str(content["error"].get("message", content["error"])))
    try:
        delta = content["choices"][0]["delta"]
        text = delta.get("content")
    except (LookupError, TypeError, AttributeError):
        return ""
    return text if isinstance(text, str) else ""


def _said_by(body: bytes) -> str:
    """What an error says: its message where the body has OpenAI's form, otherwise the beginning of the body."""
    text = body.decode(errors="replace")
    with suppress(ValueError, LookupError, TypeError):
        text = str(json.loads(text)["error"]["message"])
    return " ".join(text.split())[:_SHOWN]
