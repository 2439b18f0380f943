"""Server-sent events, as every dialect writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from turnwise.tools.formats import ToolCall

DONE = "data: [DONE]\n\n"
"""How OpenAI's chat and completion streams end."""


def event(content: Mapping[str, Any], name: str = "") -> str:
    """One event: `data: {...}`, with its name where the dialect gives one."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(content, ensure_ascii=False, separators=(',', ':'))}\n\n"


def arguments_text(call: ToolCall) -> str:
    """The arguments of a call as clients expect them: JSON in a text."""
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def unsent(whole: str, sent: str) -> str:
    """The rest of a text of which a part was streamed."""
    return whole[len(sent) :] if whole.startswith(sent) else ""


def openai_problem(status: int, message: str, code: str = "") -> dict[str, Any]:
    """The body of an error, for all of OpenAI's formats."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code or status}}
