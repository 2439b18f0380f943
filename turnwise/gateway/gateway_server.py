"""The endpoint that programs call: an HTTP server on loopback, one per process, started when it is first needed."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from turnwise.dialects.asgi import (
    CHAT_DIALECTS,
    COUNT_ROUTE,
    Receive,
    RefusedError,
    Scope,
    Send,
    end_stream,
    headers_of,
    keys_of,
    model_entry,
    path_of,
    read_asked,
    read_body,
    send_json,
    send_part,
    speaks_at,
    start_stream,
)
from turnwise.dialects.dialect import KEEP_ALIVE, Answered, Asked, Dialect
from turnwise.dialects.server_thread import ServerThread, require_server
from turnwise.envs.faults import describe
from turnwise.envs.lane import allow_many_files
from turnwise.gateway.agent_session import MODEL, AgentSession

_ALIVE_SECONDS = 5.0
_CHARACTERS_PER_TOKEN = 4


class Gateway:
    """Answers the calls of all sessions: an ASGI application. `gateway()` is the one that listens for this process."""

    def __init__(self) -> None:
        self.origin = ""
        """Where it listens: `http://127.0.0.1:43121`."""
        self._sessions: dict[str, AgentSession] = {}
        self._calls = 0

    def listen(self) -> None:
        """Answer on a port of this machine from now on."""
        allow_many_files()  # a session takes a handful: two ends of a connection, and the program's event loop
        self.origin = ServerThread(self, name="gateway").origin

    def open(self, session: AgentSession) -> None:
        """Answer the calls that come with this session's key."""
        self._sessions[session.key] = session

    def leave(self, session: AgentSession) -> None:
        """Forget a session that is closed; calls with its key are refused."""
        self._sessions.pop(session.key, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request (ASGI)."""
        if scope["type"] != "http":
            return
        path, dialect = path_of(scope), CHAT_DIALECTS.get(path_of(scope))
        speaks = speaks_at(path)
        try:
            body = await read_body(receive)
            if scope["method"] in ("GET", "HEAD"):
                return await send_json(send, 200, _offer(scope["method"], path))
            session, headers = self._session(scope)
            if path == COUNT_ROUTE:
                return await send_json(send, 200, {"input_tokens": len(body) // _CHARACTERS_PER_TOKEN})
            if dialect is None:
                raise _nothing_at(scope["method"], path)
            await self._answer(dialect, session, headers, body, send)
        except RefusedError as refusal:
            await send_json(send, refusal.status, speaks.problem(refusal.status, str(refusal)))
        except Exception as error:  # the edge: a defect of ours must not look like silence
            await send_json(send, 500, speaks.problem(500, describe(error)))

    def _session(self, scope: Scope) -> tuple[AgentSession, dict[str, str]]:
        headers = headers_of(scope)
        session = next((self._sessions[key] for key in keys_of(headers) if key in self._sessions), None)
        if session is None:
            raise RefusedError(
                401, "this API key belongs to no running episode; use the one that the program was given"
            )
        return session, headers

    async def _answer(
        self, dialect: Dialect, session: AgentSession, headers: Mapping[str, str], body: bytes, send: Send
    ) -> None:
        asked = _one_answer(read_asked(dialect, body))
        body_key = headers.get("idempotency-key", "") + ":" + hashlib.sha256(dialect.path.encode() + body).hexdigest()
        again = "idempotency-key" in headers or headers.get("x-stainless-retry-count", "0") != "0"
        future = asyncio.wrap_future(session.ask(asked, body_key=body_key, again=again))
        self._calls += 1
        id, created = f"turnwise-{self._calls}", int(time.time())
        if asked.stream:
            return await _send_stream(send, dialect.stream(asked, id=id, created=created), future)
        # A retry waits for the same answer: a client that has gone must not cancel it.
        answered = await asyncio.shield(future)
        await send_json(send, 200, dialect.write(asked, answered, id=id, created=created))


@cache
def gateway() -> Gateway:
    """The server of this process."""
    require_server("a program as agent")
    server = Gateway()
    server.listen()
    return server


def _offer(method: str, path: str) -> dict[str, Any]:
    """What is told to those who look around."""
    model = model_entry(MODEL)
    if path.startswith("/v1/models/"):
        return model
    if path not in ("/v1", "/v1/models"):
        raise _nothing_at(method, path)
    return {"object": "list", "data": [model], "has_more": False}


def _nothing_at(method: str, path: str) -> RefusedError:
    return RefusedError(404, f"there is no {method} {path[:200]}; post to {', '.join(CHAT_DIALECTS)}")


def _one_answer(asked: Asked) -> Asked:
    if asked.n != 1:
        raise RefusedError(400, f"n is {asked.n}; a call has one answer here: call {asked.n} times")
    return asked


async def _send_stream(send: Send, writer: Any, future: asyncio.Future[Answered]) -> None:
    """Replay the answer as a stream; comments keep the connection alive until there is one."""
    await start_stream(send)
    await send_part(send, writer.begin())
    while not future.done():
        await asyncio.wait([future], timeout=_ALIVE_SECONDS)
        if not future.done():
            await send_part(send, KEEP_ALIVE)
    try:
        await send_part(send, writer.end(future.result()))
    except RefusedError as refusal:
        await send_part(send, writer.fail(refusal.status, str(refusal)))
    await end_stream(send)
