"""One server of a remote engine: calls with a deadline, and a circuit that opens when it fails.

A server is used only while it is up: it was given the newest weights and passed the probe. Failures in a row take it
down until the next publish, which gives it the weights again. A server that fails the probe is refused for good.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from turnwise.engine.wires import Answer, Ask, Call, Wire, WireError

Status = Literal["new", "up", "down", "refused"]
FAILURES = 3
"""Failures in a row that take a server down."""
MAX_ANSWER = 64 * 2**20
"""Bytes of an answer."""
CONNECT_SECONDS = 10.0


class ServerError(Exception):
    """A call failed, for the given reason."""

    def __init__(self, text: str, *, timed_out: bool = False) -> None:
        super().__init__(text)
        self.timed_out = timed_out


def make_client(token: str) -> httpx.AsyncClient:
    """A client that keeps its connections, shorter than servers usually do."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=512, keepalive_expiry=4.0)
    return httpx.AsyncClient(headers=headers, limits=limits, trust_env=False)


@dataclass(kw_only=True, eq=False)
class Server:
    """Where to ask, and whether it may be asked. Changed in the loop of the client alone."""

    url: str
    wire: Wire
    client: httpx.AsyncClient
    status: Status = "new"
    why: str = ""
    """The last failure."""
    failures: int = 0
    given: list[str] = field(default_factory=list[str])
    """The version of every publish that it has passed. One that was restarted answers with another."""
    verdict: asyncio.Future[None] | None = None
    """While it is being probed: answers wait for it."""
    closing: list[str] = field(default_factory=list[str])
    """Ended sessions that it does not know of yet."""
    order: int = 0
    """The number of the next request in lock-step."""

    async def call(self, call: Call, seconds: float) -> Any:
        """The JSON that it answers; ServerError for anything else."""
        content = None if call.body is None else json.dumps(call.body, separators=(",", ":")).encode()
        try:
            async with asyncio.timeout(seconds):
                request = self.client.build_request(
                    "GET" if content is None else "POST",
                    self.url + call.path,
                    content=content,
                    headers=call.headers,
                    timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
                )
                response = await self.client.send(request, stream=True)
                try:
                    received = await _receive(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise ServerError(f"no answer from {call.path} within {seconds:g} s", timed_out=True) from None
        except httpx.HTTPError as error:
            raise ServerError(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from error
        if response.status_code != 200:
            raise ServerError(f"{call.path} answered {response.status_code}: {_message(received)}")
        try:
            return json.loads(received) if received.strip() else None
        except (ValueError, RecursionError):
            raise ServerError(f"{call.path} answered {len(received)} bytes that are not JSON") from None

    async def ask(self, ask: Ask, seconds: float, *, adds: dict[str, Any] | None = None) -> Answer:
        """Tokens, once nobody doubts its weights; ServerError if they cannot be used."""
        call = self.wire.generate(ask)
        if adds and call.body is not None:
            call.body.update(adds)
        content = await self.call(call, seconds)
        try:
            answer = self.wire.read(content, ask)
        except WireError as error:
            raise ServerError(str(error)) from error
        return answer

    async def trusted(self, answer: Answer, *, since: int) -> Answer:
        """The answer, if its weights were those of the learner; a server in doubt keeps it waiting.

        `since` publishes were known when it was asked for: tokens are of the newest of these, or newer.
        """
        if self.verdict is not None:
            await asyncio.shield(self.verdict)
        if self.status == "refused":
            raise ServerError(self.why)
        if unknown := set(answer.versions) - set(self.given[since - 1 :]):
            raise ServerError(f"its tokens are of version {min(unknown)!r}, which is not the one that it was given")
        return answer

    def failed(self, error: ServerError) -> bool:
        """Count a failure; whether it took the server down."""
        self.why, self.failures = str(error), self.failures + 1
        went = self.status == "up" and (self.failures >= FAILURES or error.timed_out)
        if went:
            self.status = "down"
        return went


async def _receive(response: httpx.Response) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > MAX_ANSWER:
            raise ServerError(f"its answer has more than {MAX_ANSWER:,} bytes")
    return bytes(content)


def _message(content: bytes) -> str:
    """What a server says is wrong, in a line."""
    try:
        said = json.loads(content)["error"]
        text = said["message"] if isinstance(said, dict) else said
    except (ValueError, KeyError, TypeError, RecursionError):
        text = content[:300].decode(errors="replace")
    return " ".join(str(text).split())[:300]
