"""The fields of a request's body: checked one by one, each mistake with its fix."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from turnwise.dialects.dialect import Said

_HALF = re.compile("[\ud800-\udfff]")
_SEED = 2**63
_LONGEST_STOP, _MOST_STOPS = 1000, 16
_MOST_CHOICES = 128


def require_body(body: Any) -> Mapping[str, Any]:
    """A JSON object whose texts are text."""
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")
    if _HALF.search(json.dumps(body, ensure_ascii=False)):
        raise ValueError("the body has half of a surrogate pair, which is not text; send UTF-8")
    return body


def text(body: Mapping[str, Any], name: str, default: str = "") -> str:
    """A field that is a text; null counts as absent, here and below."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise ValueError(f"{name} is of type {type(value).__name__}; send a text")
    return value


def number(body: Mapping[str, Any], name: str, *, least: float, most: float) -> float | None:
    """A field that is a number within bounds."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {_short(value)}; send a number from {least:g} to {most:g}")
    if not least <= value <= most:
        raise ValueError(f"{name} is {_short(value)}; it must be from {least:g} to {most:g}")
    return float(value)


def integer(body: Mapping[str, Any], name: str, *, least: int, most: int = _SEED - 1) -> int | None:
    """A field that is a whole number within bounds."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {_short(value)}; send a whole number")
    if not least <= value <= most:
        raise ValueError(f"{name} is {_short(value)}; it must be from {least} to {most}")
    return value


def flag(body: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """A field that is true or false."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {_short(value)}; send true or false")
    return value


def options(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A field that is an object."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{name} is of type {type(value).__name__}; send an object")
    return value


def rows(body: Mapping[str, Any], name: str) -> list[Any]:
    """A field that is a list."""
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{name} is of type {type(value).__name__}; send a list")
    return value


def stops(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A stop string or a list of them."""
    value = body.get(name)
    found = [value] if isinstance(value, str) else rows(body, name)
    if any(not isinstance(each, str) or not each or len(each) > _LONGEST_STOP for each in found):
        raise ValueError(f"{name} must be texts of 1 to {_LONGEST_STOP} characters")
    if len(found) > _MOST_STOPS:
        raise ValueError(f"{name} has {len(found)} texts; send at most {_MOST_STOPS}")
    return tuple(found)


def seed(body: Mapping[str, Any]) -> int | None:
    """The seed, a signed 64-bit number."""
    return integer(body, "seed", least=-_SEED)


def choices(body: Mapping[str, Any]) -> int:
    """How many answers."""
    return integer(body, "n", least=1, most=_MOST_CHOICES) or 1


def model_name(body: Mapping[str, Any]) -> str:
    """The model, which every format requires."""
    name = text(body, "model")
    if not name:
        raise ValueError("model is missing; /v1/models lists the names")
    return name


def function_tool(place: int, name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"tool {place} has no name; send a function with a name and parameters")
    if not isinstance(parameters, dict | None) or not isinstance(description, str | None):
        raise ValueError(
            f"tool {place} ({name[:60]}) has parameters that are no JSON schema, or no text to describe it"
        )
    schema = {"type": "object", "properties": {}} if parameters is None else parameters
    function = {"name": name, "description": description or "", "parameters": schema}
    return {"type": "function", "function": function}


def require_conversation(messages: Iterable[Said], *, name: str) -> tuple[Said, ...]:
    """The messages, of which there must be one."""
    found = tuple(messages)
    if not found:
        raise ValueError(f"{name} is empty; send at least one message")
    return found


def set_fields(body: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> tuple[str, ...]:
    """The names of fields that ask for something: those whose value is not null, nor one of the neutral ones."""
    return tuple(
        name for name, values in neutral.items() if body.get(name) is not None and body[name] not in (*values, [], {})
    )


def unknown(body: Mapping[str, Any], known: str, more: Iterable[str] = ()) -> tuple[str, ...]:
    """The fields that a format does not have, in words that name the nearest one that it has; `known` are words."""
    names = {*known.split(), *more}
    return tuple(_unknown(str(name)[:60], names) for name in body if name not in names)


def _unknown(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"{name!r}, did you mean {near[0]!r}?" if near else repr(name)


def _short(value: Any) -> str:
    return repr(value)[:60]
