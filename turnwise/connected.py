"""Work for a client over HTTP that ends when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

Value = TypeVar("Value")


class ClientLeftError(Exception):
    """The client closed its connection before it had its answer; the work for it was cancelled."""


async def while_connected(receive: Callable[[], Awaitable[Mapping[str, Any]]], work: Awaitable[Value]) -> Value:
    """The result of the work; `receive` (ASGI) has delivered the whole request and reports only the end."""
    task, leaves = asyncio.ensure_future(work), asyncio.create_task(_leaves(receive))
    try:
        await asyncio.wait({task, leaves}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientLeftError
    finally:
        for each in (task, leaves):
            if not each.done():
                each.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await each


async def _leaves(receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
    if (await receive())["type"] != "http.disconnect":
        await asyncio.Event().wait()  # a server that says anything else does not tell when a client leaves
