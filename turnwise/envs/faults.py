"""What an environment can get wrong, in one exception, and the checks that find a malformed answer."""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from turnwise.envs.base import Reset, Step

Culprit = Literal["env", "agent"]
FAULTS = (Exception, SystemExit, asyncio.CancelledError)
"""Whatever code of others may raise at the edge; not Ctrl-C."""


class EpisodeError(Exception):
    """One episode cannot go on: its environment or its agent crashed, hung or answered nonsense."""

    def __init__(self, text: str, *, culprit: Culprit = "env", timed_out: bool = False) -> None:
        super().__init__(text)
        self.culprit: Culprit = culprit
        self.timed_out = timed_out


def describe(error: BaseException) -> str:
    """One line for a log: type, message and the place that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def is_cancellation(error: BaseException) -> bool:
    """Whether the error ends this task because somebody cancelled it, rather than leaking out of other code."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def read_seats(answer: Any) -> tuple[str, ...]:
    """The names in `seats`, or an EpisodeError that says what is wrong with them."""
    names = () if isinstance(answer, str) else tuple(answer)
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise EpisodeError(f"seats must be a tuple of different names, got {_short(answer)}")
    return names


def read_reset(answer: Any) -> Reset:
    """The answer of `reset`, or an EpisodeError that says what is wrong with it."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise EpisodeError(f"reset must return (observation, info), got {_short(answer)}")
    observation, info = answer
    _require(isinstance(observation, str), "reset", "observation", "a string", observation)
    _check_info("reset", info)
    return observation, info


def read_step(answer: Any) -> Step:
    """The answer of `step` with plain float and booleans, or an EpisodeError that says what is wrong with it."""
    if not isinstance(answer, tuple) or len(answer) != 5:
        raise EpisodeError(f"step must return (observation, reward, terminated, truncated, info), got {_short(answer)}")
    observation, reward, terminated, truncated, info = answer
    _require(isinstance(observation, str), "step", "observation", "a string", observation)
    _require(_is_finite(reward), "step", "reward", "a finite number", reward)
    _require(_is_boolean(terminated), "step", "terminated", "a bool", terminated)
    _require(_is_boolean(truncated), "step", "truncated", "a bool", truncated)
    _check_info("step", info)
    return observation, float(reward), bool(terminated), bool(truncated), info


def _check_info(method: str, info: Any) -> None:
    _require(isinstance(info, dict), method, "info", "a dict", info)
    for key in ("rewards", "reward_parts"):
        _require(
            _is_reward_table(info.get(key, {})), method, f"info[{key!r}]", "names with finite numbers", info.get(key)
        )
    for key in ("seat", "state_key"):
        _require(isinstance(info.get(key, ""), str), method, f"info[{key!r}]", "a string", info.get(key))
    for key in ("valid", "success"):
        _require(_is_truth(info.get(key, True)), method, f"info[{key!r}]", "a bool", info.get(key))


def _is_reward_table(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_finite(reward) for reward in value.values())


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _is_truth(value: Any) -> bool:
    # Several values, such as an array, are neither true nor false; success may come as a mapping by seat.
    if isinstance(value, Mapping):
        return all(_is_truth(each) for each in value.values())
    try:
        bool(value)
    except (ValueError, TypeError):
        return False
    return True


def _is_boolean(value: Any) -> bool:
    # numpy's own booleans come out of comparisons of array elements; they are no subclass of bool.
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def _require(holds: bool, method: str, part: str, expected: str, value: Any) -> None:
    if not holds:
        raise EpisodeError(f"{method} must return {part} as {expected}, got {_short(value)}")


def _short(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
