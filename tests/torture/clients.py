"""Clients of a served model, good and bad, many at once: each gets one clear status, and nothing of them stays."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.engine.local_servers import eventually
from tests.serve.local_model import LocalModel, ModelServer, ServerThread, chat, local_model, raw_request
from tests.torture.tally import Tally
from turnwise.dialects.asgi import MOST_BYTES

COUNT = 10_000
_AT_ONCE = 16
_MOST_UNREAD = 8
"""Clients that never read, at the same time."""
_MORE_USED = 2.0
"""MiB that the second half of the requests may add to what is in use: far less than one large body, and 420 bytes for
each of 5,000 requests."""
_MORE_RESIDENT = _AT_ONCE * MOST_BYTES / 2**20
"""MiB that it may add to what is in memory: a freed body may stay with the allocator, one for each client at once."""
_LARGEST_BLOCK = 512
"""Bytes of a small object of Python's, at most; the system allocator has the larger ones."""
_SECONDS = 120.0
_PATH = "/v1/chat/completions"
_GOOD, _BAD, _TOO_LARGE = b" 200 ", (b" 400 ", b" 404 "), b" 413 "


_Unread = list[socket.socket]
"""Connections whose clients have asked and do not read."""


def campaign(*, count: int, seed: int, patience: float = 60.0) -> Tally:
    """Send requests of every kind from several clients at once; after `patience` seconds nothing of them may stay."""
    tally, first = Tally(), count // 2
    _large_bodies()
    with local_model(listening=_with_small_buffers) as local:
        _send(local, tally, Random(f"clients:{seed}"), first, patience)
        used, resident = _memory()
        _send(local, tally, Random(f"more clients:{seed}"), count - first, patience)
        more_used, more_resident = _memory()
    for name, grown, most in (
        ("in use", more_used - used, _MORE_USED),
        ("resident", more_resident - resident, _MORE_RESIDENT),
    ):
        if grown > most:
            tally.fail(f"memory {name} grew by {grown:.1f} MiB over {count - first} requests")
    return tally


@contextmanager
def _with_small_buffers(server: ModelServer) -> Iterator[str]:
    """The system takes little of an answer, so that it waits for a client that does not read."""
    thread = ServerThread(server, name="torture")
    try:
        thread._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        yield thread.origin
    finally:
        thread.stop()


def _send(local: LocalModel, tally: Tally, rng: Random, count: int, patience: float) -> None:
    unread = _Unread()
    asyncio.run(_send_all(local, tally, rng, count, unread))
    try:
        # Those who do not read wait for themselves alone: nothing is sampled for them any more.
        eventually(lambda: _left(local) == (0, len(unread)), seconds=patience)
        while unread:
            unread.pop().close()
        eventually(lambda: _left(local) == (0, 0), seconds=patience)
    except AssertionError:
        tally.fail(f"sessions and requests stayed: {_left(local)}; {len(unread)} clients do not read")


def _left(local: LocalModel) -> tuple[int, int]:
    """Sessions of the engine, and open requests."""
    return local.load()["sessions"], local.server.metrics.open_requests


async def _send_all(local: LocalModel, tally: Tally, rng: Random, count: int, unread: _Unread) -> None:
    kinds = iter(rng.choices(list(_KINDS), [share for share, _ in _KINDS.values()], k=count))

    async def client() -> None:
        for kind in kinds:
            try:
                async with asyncio.timeout(_SECONDS):
                    _, ask = _KINDS[kind]
                    tally.note(await ask(local, rng, unread))
            except (AssertionError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                tally.fail(f"{kind}: {error!r}")

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(client())


async def _whole(local: LocalModel, rng: Random, unread: _Unread) -> str:
    answer = await _ask(local, chat(max_tokens=4, seed=rng.getrandbits(20)))
    assert _GOOD in answer[:20], answer[:200]
    return "answered"


async def _streamed(local: LocalModel, rng: Random, unread: _Unread) -> str:
    answer = await _ask(local, chat(max_tokens=4, stream=True))
    assert b"[DONE]" in answer, answer[-200:]
    return "streamed"


async def _wrong(local: LocalModel, rng: Random, unread: _Unread) -> str:
    wrong: list[Any] = [chat(model="x"), chat(n=0), chat(stop=[""]), b"{", b"\x00", [], chat("the river " * 2000)]
    answer = await _ask(local, rng.choice(wrong))
    assert any(status in answer[:20] for status in _BAD), answer[:200]
    return "refused"


async def _leaves(local: LocalModel, rng: Random, unread: _Unread) -> str:
    _, writer = await _post(local, chat(max_tokens=400, stream=rng.random() < 0.5))
    if rng.random() < 0.5:
        await asyncio.sleep(rng.random() / 20)
    writer.transport.abort()
    return "left"


async def _rubbish(local: LocalModel, rng: Random, unread: _Unread) -> str:
    _, writer = await _connect(local)
    writer.write(rng.randbytes(rng.randint(1, 300)))
    await writer.drain()
    writer.close()
    return "talked rubbish"


async def _large(local: LocalModel, rng: Random, unread: _Unread) -> str:
    body = rng.choice(_large_bodies())
    answer = await _ask(local, body)
    assert (_TOO_LARGE if len(body) > MOST_BYTES else _BAD[0]) in answer[:20], answer[:200]
    return "sent 10 MB"


@cache
def _large_bodies() -> tuple[bytes, bytes]:
    """One byte too much, and a text that is too long for the model."""
    words = "the river " * (MOST_BYTES // 10)
    return b"x" * (MOST_BYTES + 1), json.dumps(chat(words[: MOST_BYTES - 1000])).encode()


async def _never_reads(local: LocalModel, rng: Random, unread: _Unread) -> str:
    body = chat(max_tokens=60, n=4, stream=True, logprobs=True, top_logprobs=20)
    unread.append(raw_request(local, _PATH, body, buffer=4096))
    if len(unread) > _MOST_UNREAD:
        unread.pop(0).close()
    return "never read"


_KINDS = {
    "whole": (20, _whole),
    "streamed": (20, _streamed),
    "wrong": (20, _wrong),
    "leaves": (18, _leaves),
    "rubbish": (18, _rubbish),
    "large": (2, _large),
    "never reads": (2, _never_reads),
}
"""Each with its share in percent."""


async def _connect(local: LocalModel) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(local.origin.rpartition(":")[2]))


async def _post(local: LocalModel, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reader, writer = await _connect(local)
    head = f"POST {_PATH} HTTP/1.1\r\nHost: 127.0.0.1:1\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode())
    writer.write(content)
    await writer.drain()
    return reader, writer


async def _ask(local: LocalModel, body: Any) -> bytes:
    reader, writer = await _post(local, body)
    try:
        return await reader.read()
    finally:
        writer.close()


_MALLOC_NUMBERS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _Malloc(ctypes.Structure):
    """What glibc says of its memory; only two of its numbers are read."""

    _fields_ = [(name, ctypes.c_size_t) for name in _MALLOC_NUMBERS]


def _memory() -> tuple[float, float]:
    """MiB of this process that are in use, and MiB that are in memory; zeros where the system does not tell."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):  # glibc has it since 2.33
        return 0.0, 0.0
    libc.mallinfo2.restype = _Malloc
    malloc = libc.mallinfo2()
    used = malloc.uordblks + malloc.hblkhd + sys.getallocatedblocks() * _LARGEST_BLOCK
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return used / 2**20, pages * os.sysconf("SC_PAGE_SIZE") / 2**20
