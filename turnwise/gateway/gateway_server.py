"""The endpoint that programs call: an HTTP server on loopback, one per process, started when it is first needed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any

from turnwise.dialects.anthropic_messages import anthropic_messages
from turnwise.dialects.dialect import KEEP_ALIVE, Answered, Asked, Dialect
from turnwise.dialects.openai_chat import openai_chat
from turnwise.dialects.openai_responses import openai_responses
from turnwise.envs.faults import describe
from turnwise.envs.lane import allow_many_files
from turnwise.gateway.agent_session import MODEL, AgentSession, RefusedError

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

LOOPBACK = "127.0.0.1"
MOST_BYTES = 10_000_000
"""Of a request's body."""
_DIALECTS: dict[str, Dialect] = {each.path: each for each in (openai_chat, openai_responses, anthropic_messages)}
_COUNT = "/v1/messages/count_tokens"
_ALIVE_SECONDS = 5.0
_BACKLOG = 4096
_START_SECONDS = 30.0
_CHARACTERS_PER_TOKEN = 4


class Gateway:
    """Answers the calls of all sessions of this process. `gateway()` is the one that everybody shares."""

    def __init__(self) -> None:
        self._sessions: dict[str, AgentSession] = {}
        self._calls = 0
        allow_many_files()  # a session takes a handful: two ends of a connection, and the program's event loop
        self._listener = socket.create_server((LOOPBACK, 0), backlog=_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._started = threading.Event()
        self._failure: BaseException | None = None
        threading.Thread(target=self._run, name="turnwise-gateway", daemon=True).start()
        if not self._started.wait(_START_SECONDS):
            raise ValueError(f"the gateway's server did not start within {_START_SECONDS:g} s ({self._failure!r})")

    @property
    def origin(self) -> str:
        """Where it listens: `http://127.0.0.1:43121`."""
        return f"http://{LOOPBACK}:{self.port}"

    def open(self, session: AgentSession) -> None:
        """Answer the calls that come with this session's key."""
        self._sessions[session.key] = session

    def leave(self, session: AgentSession) -> None:
        """Forget a session that is closed; calls with its key are refused."""
        self._sessions.pop(session.key, None)

    def _run(self) -> None:
        import uvicorn

        config = uvicorn.Config(
            self._serve,
            interface="asgi3",
            proxy_headers=False,
            server_header=False,
            date_header=False,
            lifespan="off",
            access_log=False,
            log_level="critical",
            timeout_keep_alive=600,
            ws="none",
        )
        server = uvicorn.Server(config)

        async def main() -> None:
            asyncio.get_running_loop().call_soon(self._started.set)
            await server.serve(sockets=[self._listener])

        try:
            asyncio.run(main())
        except BaseException as error:  # the edge of a thread: whoever waits for it is told
            self._failure = error

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request (ASGI)."""
        if scope["type"] != "http":
            return
        path, dialect = _path_of(scope), _DIALECTS.get(_path_of(scope))
        speaks = dialect or (anthropic_messages if path.startswith("/v1/messages") else openai_chat)
        try:
            body = await _read_body(receive)
            if scope["method"] in ("GET", "HEAD"):
                return await _send_json(send, 200, _offer(path))
            session, headers = self._session(scope)
            if path == _COUNT:
                return await _send_json(send, 200, {"input_tokens": len(body) // _CHARACTERS_PER_TOKEN})
            if dialect is None:
                raise RefusedError(404, f"there is no {scope['method']} {path}; post to {', '.join(_DIALECTS)}")
            await self._answer(dialect, session, headers, body, send)
        except RefusedError as refusal:
            await _send_json(send, refusal.status, speaks.problem(refusal.status, str(refusal)))
        except Exception as error:  # the edge: a defect of ours must not look like silence
            await _send_json(send, 500, speaks.problem(500, describe(error)))

    def _session(self, scope: Scope) -> tuple[AgentSession, dict[str, str]]:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ").strip()
        session = self._sessions.get(key)
        if session is None:
            raise RefusedError(
                401, "this API key belongs to no running episode; use the one that the program was given"
            )
        return session, headers

    async def _answer(
        self, dialect: Dialect, session: AgentSession, headers: Mapping[str, str], body: bytes, send: Send
    ) -> None:
        asked = _read(dialect, body)
        body_key = headers.get("idempotency-key", "") + ":" + hashlib.sha256(dialect.path.encode() + body).hexdigest()
        again = "idempotency-key" in headers or headers.get("x-stainless-retry-count", "0") != "0"
        future = asyncio.wrap_future(session.ask(asked, body_key=body_key, again=again))
        self._calls += 1
        id, created = f"turnwise-{self._calls}", int(time.time())
        if asked.stream:
            return await _send_stream(send, dialect.stream(asked, id=id, created=created), future)
        # A retry waits for the same answer: a client that has gone must not cancel it.
        answered = await asyncio.shield(future)
        await _send_json(send, 200, dialect.write(asked, answered, id=id, created=created))


@cache
def gateway() -> Gateway:
    """The server of this process."""
    try:
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise ValueError("a program as agent needs a server; install it with: pip install 'turnwise[serve]'") from error
    return Gateway()


def _path_of(scope: Scope) -> str:
    """The route; clients differ in whether they add /v1 to the address that they are given."""
    path = "/" + scope["path"].strip("/")
    while path.startswith("/v1/v1/"):
        path = path.removeprefix("/v1")
    return path if path.startswith("/v1") else f"/v1{path}".rstrip("/")


def _offer(path: str) -> dict[str, Any]:
    """What is told to those who look around."""
    model = {
        "id": MODEL,
        "object": "model",
        "type": "model",
        "display_name": MODEL,
        "owned_by": "turnwise",
        "created": 0,
    }
    return model if path.startswith("/v1/models/") else {"object": "list", "data": [model], "has_more": False}


async def _read_body(receive: Receive) -> bytes:
    parts, size = list[bytes](), 0
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


def _read(dialect: Dialect, body: bytes) -> Asked:
    try:
        asked = dialect.read(json.loads(body))
    except RecursionError:
        raise RefusedError(400, "the body is nested too deeply; send less") from None
    except ValueError as error:  # JSON and UTF-8 errors are, too
        raise RefusedError(400, str(error)) from None
    if asked.n != 1:
        raise RefusedError(400, f"n is {asked.n}; a call has one answer here: call {asked.n} times")
    return asked


async def _send_json(send: Send, status: int, value: Any) -> None:
    body = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_stream(send: Send, writer: Any, future: asyncio.Future[Answered]) -> None:
    """Replay the answer as a stream; comments keep the connection alive until there is one."""
    headers = [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await _send_part(send, writer.begin())
    while not future.done():
        await asyncio.wait([future], timeout=_ALIVE_SECONDS)
        if not future.done():
            await _send_part(send, KEEP_ALIVE)
    try:
        await _send_part(send, writer.end(future.result()))
    except RefusedError as refusal:
        await _send_part(send, writer.fail(refusal.status, str(refusal)))
    await send({"type": "http.response.body", "body": b""})


async def _send_part(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
