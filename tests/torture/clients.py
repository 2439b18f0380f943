"""Clients of a served model, good and bad, many at once: each gets one clear status, and nothing of them stays."""

from __future__ import annotations

import asyncio
import json
import resource
from random import Random
from typing import Any

from tests.serve.local_model import LocalModel, chat, eventually, local_model
from tests.torture.tally import Tally

COUNT = 10_000
_AT_ONCE = 16
_WARM = 0.2
"""The share of requests after which memory must no longer grow."""
_MORE_MIB = 48
_SECONDS = 120.0
_PATH = "/v1/chat/completions"
_GOOD, _BAD = b" 200 ", (b" 400 ", b" 404 ", b" 413 ")


def campaign(*, count: int, seed: int, patience: float = 60.0) -> Tally:
    """Send requests of every kind from several clients at once; after `patience` seconds nothing of them may stay."""
    tally = Tally()
    with local_model() as local:
        warm = max(1, round(count * _WARM))
        asyncio.run(_send(local, tally, Random(f"clients:{seed}"), warm))
        before = _memory()
        asyncio.run(_send(local, tally, Random(f"more clients:{seed}"), count - warm))
        try:
            eventually(lambda: _is_idle(local), seconds=patience)
        except AssertionError:
            tally.fail(f"{local.load()} and {local.server.metrics.open_requests} requests stayed")
        grown = _memory() - before
    if grown > _MORE_MIB:
        tally.fail(f"memory grew by {grown:.0f} MiB over {count - warm} requests")
    return tally


def _is_idle(local: LocalModel) -> bool:
    return local.load()["sessions"] == 0 and local.server.metrics.open_requests == 0


async def _send(local: LocalModel, tally: Tally, rng: Random, count: int) -> None:
    kinds = iter([rng.choice(list(_KINDS)) for _ in range(count)])

    async def client() -> None:
        for kind in kinds:
            try:
                async with asyncio.timeout(_SECONDS):
                    tally.note(await _KINDS[kind](local, rng))
            except (AssertionError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                tally.fail(f"{kind}: {error!r}")

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(client())


async def _whole(local: LocalModel, rng: Random) -> str:
    answer = await _ask(local, chat(max_tokens=4, seed=rng.getrandbits(20)))
    assert _GOOD in answer[:20], answer[:200]
    return "answered"


async def _streamed(local: LocalModel, rng: Random) -> str:
    answer = await _ask(local, chat(max_tokens=4, stream=True))
    assert b"[DONE]" in answer, answer[-200:]
    return "streamed"


async def _wrong(local: LocalModel, rng: Random) -> str:
    wrong: list[Any] = [chat(model="x"), chat(n=0), chat(stop=[""]), b"{", b"\x00", [], chat("the river " * 2000)]
    answer = await _ask(local, rng.choice(wrong))
    assert any(status in answer[:20] for status in _BAD), answer[:200]
    return "refused"


async def _leaves(local: LocalModel, rng: Random) -> str:
    _, writer = await _post(local, chat(max_tokens=400, stream=rng.random() < 0.5))
    if rng.random() < 0.5:
        await asyncio.sleep(rng.random() / 20)
    writer.transport.abort()
    return "left"


async def _rubbish(local: LocalModel, rng: Random) -> str:
    _, writer = await _connect(local)
    writer.write(rng.randbytes(rng.randint(1, 300)))
    await writer.drain()
    writer.close()
    return "talked rubbish"


_KINDS = {"whole": _whole, "streamed": _streamed, "wrong": _wrong, "leaves": _leaves, "rubbish": _rubbish}


async def _connect(local: LocalModel) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(local.origin.rpartition(":")[2]))


async def _post(local: LocalModel, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reader, writer = await _connect(local)
    head = f"POST {_PATH} HTTP/1.1\r\nHost: 127.0.0.1:1\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    await writer.drain()
    return reader, writer


async def _ask(local: LocalModel, body: Any) -> bytes:
    reader, writer = await _post(local, body)
    try:
        return await reader.read()
    finally:
        writer.close()


def _memory() -> float:
    """MiB that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
