"""The chat format with nothing but the standard library, for programs that need no client of their own."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit


def post(
    base_url: str, api_key: str, body: bytes, *, path: str = "/chat/completions", x_api_key: str = ""
) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    where = urlsplit(base_url)
    assert where.hostname is not None
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    headers = {"Authorization": f"Bearer {api_key}", **({"x-api-key": x_api_key} if x_api_key else {})}
    try:
        connection.request("POST", where.path + path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def chat(base_url: str, api_key: str, *texts: str) -> str:
    """The answer to a conversation, in which the user speaks first."""
    rows = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]
    status, answer = post(base_url, api_key, json.dumps({"model": "any", "messages": rows}).encode())
    if status != 200:
        raise RuntimeError(f"{status}: {answer['error']['message']}")
    return answer["choices"][0]["message"]["content"]


def run(task: Any, base_url: str, api_key: str) -> float:
    """A whole program: it asks twice, and long answers earn more."""
    first = chat(base_url, api_key, f"task {task['seed']} : say something")
    return float(len(chat(base_url, api_key, f"task {task['seed']} : say something", first, "more")) > 20)
