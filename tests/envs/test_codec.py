"""Plain data across a process boundary: it comes back as it was, and nothing else comes at all."""

import math
import pickle
from typing import Any

import pytest

from turnwise.envs import codec

ANSWERS = [
    None,
    ("text", {"success": True, "turns": 3, "share": 0.1, "nested": [1, (2, {"a": None})]}),
    {1: "one", (2, 3): "pair", "": []},
    {"tuple": [1], "dict": [[1, 2]]},
    "\ud800 a lone surrogate, \U0001f600 and \x00",
    (3, tuple(range(625)), None),
    10**1000,
    -0.0,
    math.inf,
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_plain_data_comes_back_exactly(answer: Any):
    back = codec.decode(codec.encode(answer))
    assert repr(back) == repr(answer)


def test_numbers_of_numpy_become_plain_numbers():
    numpy = pytest.importorskip("numpy")
    sent = {"flag": numpy.bool_(True), "score": numpy.float32(0.5), "grid": numpy.arange(4).reshape(2, 2)}
    back = codec.decode(codec.encode(sent))
    assert back == {"flag": True, "score": 0.5, "grid": [[0, 1], [2, 3]]}
    assert [type(value) for value in back.values()] == [bool, float, list]


class Odd:
    """Raises whenever anybody looks at it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"do not ask for {name}")

    def __repr__(self) -> str:
        raise RuntimeError("do not look")


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_what_is_no_data_becomes_text_and_its_neighbours_stay():
    twins: list[Any] = []
    twins += [twins, twins]
    info = {"odd": Odd(), "deep": nested(100_000), "holds": [1, Odd()], "twins": twins, "set": {1}, "digits": 10**5000}
    *_, back = codec.decode(codec.encode((True, ("text", info))))[1]
    assert back == {
        "odd": "<Odd that cannot be shown>",
        "deep": "<list that cannot be shown>",
        "holds": "<list that cannot be shown>",
        "twins": "[[...], [...]]",
        "set": "{1}",
        "digits": "<int that cannot be shown>",
    }


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"{",
        b"\xff\xfe",
        pickle.dumps(("text", {})),
        b'{"other": 1}',
        b'{"dict": [[[], 1]]}',
        b'{"dict": 3}',
        b"[" * 1_000_000,
        b"9" * 100_000,
    ],
)
def test_anything_else_is_refused(message: bytes):
    with pytest.raises(ValueError, match=r"."):
        codec.decode(message)


def test_a_message_beyond_the_bound_is_refused():
    with pytest.raises(
        ValueError, match=r"the answer takes 16,777,\d+ bytes, and a worker process may send 16,777,216"
    ):
        codec.encode("x" * codec.MAX_BYTES)
