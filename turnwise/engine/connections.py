"""Connections to one server, kept open: the few lines of HTTP/1.1 that an engine needs, over asyncio.

In lock-step all episodes wait for the next answer, so every millisecond of a request counts. A general client takes
two to eight of them with a hundred connections open; this takes a fraction of one.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

MAX_ANSWER = 64 * 2**20
"""Bytes of an answer."""
_MAX_HEAD = 2**16
_IDLE_SECONDS = 4.0
"""Shorter than servers usually keep a connection, so that a request seldom meets one that is being closed."""
_CONNECT_SECONDS = 10.0


class TransferError(Exception):
    """A request got no whole answer."""


@dataclass(kw_only=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used: float


class Connections:
    """`status, body = await Connections("http://127.0.0.1:8100", {}).send("GET", "/health")`."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        if not parts.hostname:
            raise ValueError(f"{url!r} is not an address such as http://127.0.0.1:8100")
        self._host, self._path = parts.hostname, parts.path.rstrip("/")
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._head = "".join(f"{name}: {value}\r\n" for name, value in {"host": parts.netloc, **headers}.items())
        self._idle: list[_Connection] = []

    async def send(
        self, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """The status and the body; TransferError if they do not come whole."""
        own = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._head}{own}content-length: {len(content)}\r\n\r\n"
        connection: _Connection | None = None
        try:
            connection = await self._take()
            connection.writer.write(head.encode("latin-1") + content)
            await connection.writer.drain()
            status, body, stays = await _answer(connection.reader)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, UnicodeError) as error:
            _close(connection)
            raise TransferError(_explain(error)) from error
        except BaseException:
            _close(connection)
            raise
        if stays:
            connection.used = time.monotonic()
            self._idle.append(connection)
        else:
            _close(connection)
        return status, body

    async def _take(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if time.monotonic() - connection.used < _IDLE_SECONDS and not connection.reader.at_eof():
                return connection
            _close(connection)
        opening = asyncio.open_connection(self._host, self._port, ssl=self._ssl, limit=_MAX_HEAD)
        reader, writer = await asyncio.wait_for(opening, _CONNECT_SECONDS)
        return _Connection(reader=reader, writer=writer, used=time.monotonic())

    def close(self) -> None:
        """Close those that nobody uses."""
        while self._idle:
            _close(self._idle.pop())


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """Status, body, and whether the connection stays open."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): value.strip().lower() for name, _, value in pairs}
    status, stays = int(first.split(" ", 2)[1]), headers.get("connection") != "close"
    if headers.get("transfer-encoding") == "chunked":
        return status, await _chunks(reader), stays
    if "content-length" in headers:
        return status, await reader.readexactly(_bounded(int(headers["content-length"]))), stays
    return status, await _rest(reader), False


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    content = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        _bounded(len(content) + size)
        content += (await reader.readexactly(size + 2))[:-2]
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers
    return bytes(content)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    content = bytearray()
    while chunk := await reader.read(_MAX_HEAD):
        content += chunk
        _bounded(len(content))
    return bytes(content)


def _bounded(size: int) -> int:
    if not 0 <= size <= MAX_ANSWER:
        raise ValueError(f"an answer of {size:,} bytes is more than {MAX_ANSWER:,}")
    return size


def _explain(error: Exception) -> str:
    if isinstance(error, asyncio.IncompleteReadError):
        return f"it closed the connection after {len(error.partial)} bytes of its answer"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return f"no connection within {_CONNECT_SECONDS:g} s"
    return f"{type(error).__name__}: {error}"


def _close(connection: _Connection | None) -> None:
    if connection is not None:
        connection.writer.close()
