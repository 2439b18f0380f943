"""Plain data as bytes: what a worker process may send. Decoding builds only numbers, texts and containers.

It is JSON with tuples and mappings marked, so that both come back as they were:
`("go", {"turns": [1, 2]})` is written as `{"tuple": ["go", {"dict": [["turns", [1, 2]]]}]}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from turnwise.untrusted import shown

MAX_BYTES = 2**24
"""Maximum size of one message. A longer text is more than any model reads."""
_DEEPEST = 64
"""Maximum nesting that is sent."""
_INFO_VALUES = 3
"""The nesting level of the values of `info` in an answer."""
_INTEGER_BITS = 4096
"""Bits of the longest integer sent as a number; Python limits how many digits it converts."""


def encode(value: Any) -> bytes:
    """The value in bytes. Arrays become lists, their scalars numbers; objects that are not data become their repr.

    Raises ValueError if the result is longer than `MAX_BYTES`.
    """
    message = json.dumps(_marked(value), ensure_ascii=False).encode(errors="surrogatepass")
    if len(message) > MAX_BYTES:
        raise ValueError(f"the answer takes {len(message):,} bytes, and a worker process may send {MAX_BYTES:,}")
    return message


def decode(message: bytes) -> Any:
    """What `encode` was given, in plain types; ValueError for anything else."""
    try:
        return json.loads(message, object_hook=_unmarked)
    except (TypeError, RecursionError) as error:  # a key that is a list; brackets without end
        raise ValueError(f"not an encoded value: {error}") from error


def _marked(value: Any, depth: int = 0) -> Any:
    """The value in JSON's own types; a value of `info` that cannot be encoded is replaced as a whole."""
    try:
        return _plain(value, depth)
    except Exception:  # the edge: the environment's objects may raise when inspected
        if depth > _INFO_VALUES:
            raise
        return shown(value)


def _plain(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise RecursionError(f"nested deeper than {_DEEPEST} levels")
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _INTEGER_BITS else shown(value)
    if isinstance(value, list):
        return [_marked(item, depth + 1) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_marked(item, depth + 1) for item in value]}
    if isinstance(value, Mapping):
        return {"dict": [[_marked(key, depth + 1), _marked(item, depth + 1)] for key, item in value.items()]}
    to_list = getattr(value, "tolist", None)  # arrays, tensors and their scalars
    return _marked(to_list(), depth + 1) if callable(to_list) else shown(value)


def _unmarked(item: dict[str, Any]) -> Any:
    match item:
        case {"tuple": list(parts)} if len(item) == 1:
            return tuple(parts)
        case {"dict": list(pairs)} if len(item) == 1:
            return dict(pairs)
        case _:
            raise ValueError("not an encoded value: an object without a mark")
