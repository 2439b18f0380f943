"""What servers of the dialects share: routes, bodies, answers and streams over ASGI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from turnwise.dialects.anthropic_messages import anthropic_messages
from turnwise.dialects.dialect import Asked, Dialect
from turnwise.dialects.openai_chat import openai_chat
from turnwise.dialects.openai_responses import openai_responses

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

MOST_BYTES = 10_000_000
"""Of a request's body."""
CHAT_DIALECTS: dict[str, Dialect] = {each.path: each for each in (openai_chat, openai_responses, anthropic_messages)}
"""The formats of conversations by their routes."""
COUNT_ROUTE = "/v1/messages/count_tokens"
_BODY_SECONDS = 120.0
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class RefusedError(Exception):
    """A call that is not answered, with the HTTP status that says so."""

    def __init__(self, status: int, text: str, code: str = "") -> None:
        super().__init__(text)
        self.status, self.code = status, code


def path_of(scope: Scope) -> str:
    """The route; clients differ in whether they add /v1 to the address that they are given."""
    path = "/" + scope["path"].strip("/")
    while path.startswith("/v1/v1/"):
        path = path.removeprefix("/v1")
    return path if path.startswith("/v1") else f"/v1{path}".rstrip("/")


def speaks_at(path: str) -> Dialect:
    """The format in which a problem at this route is told."""
    chat = anthropic_messages if path.startswith("/v1/messages") else openai_chat
    return CHAT_DIALECTS.get(path, chat)


def headers_of(scope: Scope) -> dict[str, str]:
    """The headers by their names in small letters."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def key_of(headers: Mapping[str, str]) -> str:
    """The API key as any of the clients sends it; empty if there is none."""
    return next(iter(keys_of(headers)), "")


def keys_of(headers: Mapping[str, str]) -> list[str]:
    """All keys that a request carries: a proxy may add one in the header that its client has left free."""
    bearer = headers.get("authorization", "").removeprefix("Bearer ").strip()
    return [*filter(None, [headers.get("x-api-key", ""), bearer])]


def model_entry(name: str) -> dict[str, Any]:
    """One row of /v1/models, in OpenAI's and Anthropic's form at once."""
    shown = {"id": name, "object": "model", "type": "model", "display_name": name}
    return {**shown, "owned_by": "turnwise", "created": 0}


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request."""
    parts, size = list[bytes](), 0
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RefusedError(400, "the request is not complete")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > MOST_BYTES:
                    raise RefusedError(413, f"the request has more than {MOST_BYTES:,} bytes; send less")
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        raise RefusedError(408, f"the request was not complete after {_BODY_SECONDS:g} s") from None


def read_json(body: bytes) -> Any:
    """The value that a body writes."""
    try:
        return json.loads(body)
    except RecursionError:
        raise RefusedError(400, "the body is nested too deeply; send less") from None
    except ValueError as error:  # JSON and UTF-8 errors are, too
        raise RefusedError(400, f"the body is not JSON: {error}") from None


def read_asked(dialect: Dialect, body: bytes) -> Asked:
    """What a request asks for."""
    try:
        return dialect.read(read_json(body))
    except RecursionError:
        raise RefusedError(400, "the body is nested too deeply; send less") from None
    except ValueError as error:
        raise RefusedError(400, str(error)) from None


async def send_json(send: Send, status: int, value: Any) -> None:
    """A whole answer."""
    await send_bytes(send, status, json.dumps(value).encode(), kind="application/json")


async def send_bytes(send: Send, status: int, body: bytes, *, kind: str) -> None:
    """A whole answer of any kind."""
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def start_stream(send: Send) -> None:
    """The head of a stream of events."""
    await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})


async def send_part(send: Send, text: str) -> None:
    """More of a stream."""
    if text:
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def end_stream(send: Send) -> None:
    """Nothing follows."""
    await send({"type": "http.response.body", "body": b""})
