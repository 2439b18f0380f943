"""`turnwise serve`: a model behind the routes of OpenAI and Anthropic, and the engine's route for tokens."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from typing import Any

from turnwise.connected import ClientLeftError, while_connected
from turnwise.dialects.anthropic_messages import anthropic_messages
from turnwise.dialects.asgi import (
    CHAT_DIALECTS,
    COUNT_ROUTE,
    Receive,
    RefusedError,
    Scope,
    Send,
    headers_of,
    key_of,
    model_entry,
    path_of,
    read_asked,
    read_body,
    read_json,
    send_bytes,
    send_json,
    speaks_at,
)
from turnwise.dialects.dialect import Asked, Dialect
from turnwise.dialects.openai_completions import openai_completions
from turnwise.doorkeeping import is_token, names_loopback
from turnwise.engine.served import Served
from turnwise.envs.faults import describe
from turnwise.serve.answering import Answering
from turnwise.serve.chat_model import ChatModel
from turnwise.serve.service_metrics import TEXT, ServiceMetrics

_DIALECTS: dict[str, Dialect] = {**CHAT_DIALECTS, openai_completions.path: openai_completions}
_TOKENS = "/inference/v1/generate"
_FACTS = ("/v1/models", "/v1/health", "/v1/metrics")
_MOST_OPEN = 1024
"""Answers that may be asked for at once."""
_LONG_BODY = 100_000
"""Bytes that are read in a thread, so that others do not wait."""


class ModelServer:
    """The ASGI application: `ServerThread(ModelServer(served, model, name="nano"), name="model server")`.

    Without a key it answers only this machine, and no web page.
    """

    def __init__(self, served: Served, model: ChatModel, *, name: str, key: str = "") -> None:
        self._served, self._model, self._name, self._key = served, model, name, key
        self.metrics = ServiceMetrics()
        self._answers = 0

    @property
    def model(self) -> ChatModel:
        """What it serves."""
        return self._model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        route, began, status = path_of(scope), time.perf_counter(), 0

        async def noting(message: dict[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        self.metrics.open_requests += 1
        try:
            await self._answer(scope, receive, noting, route)
        except ClientLeftError:
            self.metrics.left += 1
            status = status or 499
        finally:
            self.metrics.open_requests -= 1
            known = (*_DIALECTS, *_FACTS, COUNT_ROUTE)
            shown = _TOKENS if scope["path"] == _TOKENS else route if route in known else "other"
            self.metrics.requests[shown, status] += 1
            self.metrics.request_seconds.add(time.perf_counter() - began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, route: str) -> None:
        speaks = speaks_at(route)
        try:
            if scope["path"] == _TOKENS:  # it asks for the key itself
                return await self._served.app(scope, receive, send)  # pyright: ignore[reportArgumentType]
            if route != "/v1/health":
                self._require_access(headers_of(scope))
            if scope["method"] in ("GET", "HEAD"):
                return await self._tell(route, send)
            body = await read_body(receive)
            dialect = _DIALECTS.get(route)
            if route == COUNT_ROUTE:
                return await send_json(send, 200, {"input_tokens": await self._count(body)})
            if dialect is None or scope["method"] != "POST":
                raise RefusedError(
                    404, f"there is no {scope['method']} {scope['path']}; post to {', '.join(_DIALECTS)}"
                )
            await self._sample(dialect, body, receive, send)
        except RefusedError as refusal:
            await send_json(send, refusal.status, speaks.problem(refusal.status, str(refusal), refusal.code))
        except ClientLeftError:
            raise
        except Exception as error:  # the edge: a defect of ours must not look like silence
            await send_json(send, 500, speaks.problem(500, describe(error)))

    async def _sample(self, dialect: Dialect, body: bytes, receive: Receive, send: Send) -> None:
        asked = await self._read(dialect, body)
        answers = asked.n * max(1, len(asked.prompts))
        if answers > _MOST_OPEN:
            raise RefusedError(400, f"{answers} answers are more than {_MOST_OPEN}; send fewer prompts, or a smaller n")
        if self._answers + answers > _MOST_OPEN:
            raise RefusedError(503, f"{self._answers} answers are being sampled already; try again later")
        self._answers += answers
        try:
            answering = Answering(self._model, self.metrics, dialect, asked, id=secrets.token_hex(12))
            await while_connected(receive, answering.answer(send))
        finally:
            self._answers -= answers

    async def _read(self, dialect: Dialect, body: bytes) -> Asked:
        read = asyncio.to_thread(read_asked, dialect, body) if len(body) > _LONG_BODY else None
        asked = read_asked(dialect, body) if read is None else await read
        if asked.model != self._name:
            text = f"there is no model {asked.model[:100]!r} here; this server has {self._name!r}"
            raise RefusedError(404, text, "model_not_found")
        if asked.unknown:
            raise RefusedError(400, f"unknown parameter {asked.unknown[0]}", "unknown_parameter")
        if asked.unmet:
            raise RefusedError(400, f"{', '.join(asked.unmet)}: not supported here; leave it out", "unsupported")
        if asked.tool_choice not in ("auto", "none"):
            text = (
                f"tool_choice is {asked.tool_choice[:100]!r}, and nothing here can make the model call a tool: send "
                "auto and ask for the call in a message, or none"
            )
            raise RefusedError(400, text, "unsupported")
        return asked

    async def _count(self, body: bytes) -> int:
        try:
            asked = anthropic_messages.read_to_count(read_json(body))
        except ValueError as error:
            raise RefusedError(400, str(error)) from None
        return sum(map(len, await self._model.render(asked)))

    async def _tell(self, route: str, send: Send) -> None:
        """What is told to those who look around."""
        model = {**model_entry(self._name), "max_model_len": self._model.engine.capacity}
        if route == "/v1/health":
            return await send_json(send, 200, {"status": "ok"})
        if route == "/v1/metrics":
            return await send_bytes(send, 200, self.metrics.text(await self._engine()).encode(), kind=TEXT)
        if route == "/v1/models":
            return await send_json(send, 200, {"object": "list", "data": [model], "has_more": False})
        if route == f"/v1/models/{self._name}":
            return await send_json(send, 200, model)
        raise RefusedError(404, f"there is no GET {route}; ask for {', '.join(_FACTS)}")

    async def _engine(self) -> dict[str, float]:
        try:
            load = await asyncio.wrap_future(self._model.engine.between_steps(lambda engine: engine.load()))
        except RuntimeError as error:
            raise RefusedError(503, str(error)) from None
        return {**load, "busy_seconds_total": self._model.engine.busy_seconds}

    def _require_access(self, headers: Mapping[str, str]) -> None:
        if self._key:
            if not is_token(key_of(headers), self._key):
                raise RefusedError(401, "the API key is missing or wrong; send the server's", "invalid_api_key")
            return
        if "origin" in headers:
            raise RefusedError(403, "a server without an API key answers no web pages")
        if not names_loopback(headers.get("host", "")):
            raise RefusedError(403, "a server without an API key answers this machine only")
