"""Calls an ASGI application in the same event loop: no socket, no thread, the same order every time."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from turnwise.dialects.server_thread import Application

Post = Callable[[str, Mapping[str, str], bytes], Awaitable[Any]]
"""`await post("/v1/messages", headers, body)` is the JSON of the answer."""


def poster(application: Application, api_key: str) -> Post:
    """What posts with this key; RuntimeError if a call is refused."""

    async def post(path: str, headers: Mapping[str, str], body: bytes) -> Any:
        rows = {"authorization": f"Bearer {api_key}", **headers}
        encoded = [(name.encode(), value.encode()) for name, value in rows.items()]
        sent = list[Mapping[str, Any]]()

        async def receive() -> Mapping[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: Mapping[str, Any]) -> None:
            sent.append(message)

        await application({"type": "http", "method": "POST", "path": path, "headers": encoded}, receive, send)
        answer = json.loads(b"".join(message.get("body", b"") for message in sent))
        if sent[0]["status"] != 200:
            raise RuntimeError(f"{sent[0]['status']}: {answer}")
        return answer

    return post
