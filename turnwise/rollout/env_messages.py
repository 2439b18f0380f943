"""What an environment says in messages of any role, in the form in which turns record it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.tools.native_calls import MESSAGES


def call_row(number: int, observation: str, info: Mapping[str, Any]) -> dict[str, Any]:
    """`Turn.call` of the turn with this number: the messages of the info, or else the observation as the user's."""
    messages = info.get(MESSAGES) or [{"role": "user", "content": observation}]
    row = {"number": number, "after": number - 1 if number else None, "messages": messages}
    return row if number else {**row, "tools": info.get("tools", []), "native": True}
