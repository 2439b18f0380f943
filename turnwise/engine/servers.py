"""One server of a remote engine: calls with a deadline, and a circuit that opens when it fails.

A server is used only while it is up: it was given the newest weights and passed the probe. Failures in a row take it
down until the next publish, which gives it the weights again. A server that fails the probe is refused for good.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from turnwise.engine.connections import Connections, TransferError
from turnwise.engine.wires import Answer, Ask, Call, Wire, WireError

Status = Literal["new", "up", "down", "refused"]
_BAD_REQUEST = (400, 413, 422)
"""What a sound server answers to a request that it cannot serve."""
FAILURES = 3
"""Failures in a row that take a server down."""


class ServerError(Exception):
    """A call failed, for the given reason."""

    def __init__(self, text: str, *, timed_out: bool = False, blames_request: bool = False) -> None:
        super().__init__(text)
        self.timed_out, self.blames_request = timed_out, blames_request


@dataclass(kw_only=True, eq=False)
class Server:
    """Where to ask, and whether it may be asked. Changed in the loop of the client alone."""

    url: str
    wire: Wire
    connections: Connections
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

    async def call(self, call: Call, seconds: float) -> Any:
        """The JSON that it answers; ServerError for anything else."""
        method = "GET" if call.body is None else "POST"
        content = b"" if call.body is None else json.dumps(call.body, separators=(",", ":")).encode()
        try:
            async with asyncio.timeout(seconds):
                status, received = await self.connections.send(method, call.path, content, call.headers)
        except TimeoutError:
            raise ServerError(f"no answer from {call.path} within {seconds:g} s", timed_out=True) from None
        except TransferError as error:
            raise ServerError(str(error)) from error
        if status != 200:
            text = f"{call.path} answered {status}: {_message(received)}"
            raise ServerError(text, blames_request=status in _BAD_REQUEST)
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


def _message(content: bytes) -> str:
    """What a server says is wrong, in a line."""
    try:
        said = json.loads(content)["error"]
        text = said["message"] if isinstance(said, dict) else said
    except (ValueError, KeyError, TypeError, RecursionError):
        text = content[:300].decode(errors="replace")
    return " ".join(str(text).split())[:300]
