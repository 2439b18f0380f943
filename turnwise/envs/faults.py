"""What an environment can get wrong, in one exception, and the checks that detect a malformed answer."""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Mapping
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from turnwise.envs.base import Info, Reset, Step
from turnwise.untrusted import shown

Culprit = Literal["env", "agent", "engine"]
FAULTS = (Exception, SystemExit, asyncio.CancelledError)
"""Anything a user's code may raise at the edge, except Ctrl-C."""
MAX_REWARD = 1e12
"""Returns are squared and summed in single precision, which ends at 3.4e38. With rewards up to 1e12 the squares of a
thousand turns' return sum to at most 1e38 over a hundred million tokens."""
_BOUND = f"of at most {MAX_REWARD:g}"
_SENTENCE, _TRACE = 1_000, 8_000
"""Maximum characters kept of an error's message and of its stack trace."""


class EpisodeError(Exception):
    """One episode cannot continue: its environment or its agent crashed, hung or returned nonsense."""

    def __init__(self, text: str, *, culprit: Culprit = "env", timed_out: bool = False, trace: str = "") -> None:
        super().__init__(text)
        self.culprit: Culprit = culprit
        self.timed_out = timed_out
        self.trace = trace
        """Stack trace of the user's code as Python shows it; empty if nothing was raised."""


def fault_of(error: BaseException, *, culprit: Culprit = "env") -> EpisodeError:
    """An exception of the user's code as the end of its episode, with its stack trace."""
    if isinstance(error, EpisodeError):
        return error
    return EpisodeError(describe(error), culprit=culprit, trace=trace_of(error))


def describe(error: BaseException) -> str:
    """One line for a log: type, message and place of the error."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {_message(error)}{place}"


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as second:  # the edge: the message is a user's code, too
        return f"(its message cannot be read: {type(second).__name__})"
    return text if len(text) <= _SENTENCE else text[:_SENTENCE] + "..."


def trace_of(error: BaseException) -> str:
    """The stack trace as Python shows it; if it is long, its end, where the error is."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # the edge again: formatting calls the error's own code
        text = "".join(traceback.format_tb(error.__traceback__))
    return text if len(text) <= _TRACE else "..." + text[-_TRACE:]


def close_quietly(env: Any) -> None:
    """Close an instance that was only inspected; failures to close are reported by its episodes."""
    with suppress(*FAULTS):
        env.close()


def is_cancellation(error: BaseException) -> bool:
    """Whether the error means that this task was cancelled, rather than leaking from other code."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def read_seats(answer: Any) -> tuple[str, ...]:
    """The names in `seats`, or an EpisodeError that says what is wrong."""
    names = () if isinstance(answer, str) else tuple(answer)
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise EpisodeError(f"seats must be a tuple of different names, got {_short(answer)}")
    return names


def read_random_action(answer: Any) -> tuple[Any, Any]:
    """An action and the state of the generator that drew it, or an EpisodeError that says what is wrong."""
    text, state = answer
    random.Random().setstate(state)  # raises if invalid
    return text, state


def read_reset(answer: Any) -> Reset:
    """The answer of `reset`, or an EpisodeError that says what is wrong."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise EpisodeError(f"reset must return (observation, info), got {_short(answer)}")
    observation, info = answer
    _require(isinstance(observation, str), "reset", "observation", "a string", observation)
    return observation, _read_info("reset", info)


def read_step(answer: Any) -> Step:
    """The answer of `step` with plain float and booleans, or an EpisodeError that says what is wrong."""
    if not isinstance(answer, tuple) or len(answer) != 5:
        raise EpisodeError(f"step must return (observation, reward, terminated, truncated, info), got {_short(answer)}")
    observation, reward, terminated, truncated, info = answer
    _require(isinstance(observation, str), "step", "observation", "a string", observation)
    _require(_is_reward(reward), "step", "reward", f"a finite number {_BOUND}", reward)
    _require(_is_boolean(terminated), "step", "terminated", "a bool", terminated)
    _require(_is_boolean(truncated), "step", "truncated", "a bool", truncated)
    return observation, float(reward), bool(terminated), bool(truncated), _read_info("step", info)


def _read_info(method: str, info: Any) -> Info:
    """The info as a plain dict with plain numbers for rewards and plain booleans for verdicts."""
    _require(isinstance(info, dict), method, "info", "a dict", info)
    info = dict(info)
    for key in {"rewards", "reward_parts"} & info.keys():
        expected = f"names with finite numbers {_BOUND}"
        _require(_is_reward_table(info[key]), method, f"info[{key!r}]", expected, info[key])
        info[key] = {name: float(reward) for name, reward in info[key].items()}
    for key in ("seat", "state_key"):
        _require(isinstance(info.get(key, ""), str), method, f"info[{key!r}]", "a string", info.get(key))
    for key in {"valid", "success"} & info.keys():
        _require(_is_truth(info[key]), method, f"info[{key!r}]", "a bool", info[key])
        info[key] = _truth(info[key])
    return info


def _is_reward_table(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_reward(reward) for reward in value.values())


def _is_reward(value: Any) -> bool:
    try:
        return isinstance(value, Real) and abs(float(value)) <= MAX_REWARD  # NaN is not
    except OverflowError:  # an integer beyond all floats
        return False


def _is_truth(value: Any) -> bool:
    # Several values, such as an array, are neither true nor false; success may be a mapping by seat.
    if isinstance(value, Mapping):
        return all(_is_truth(each) for each in value.values())
    try:
        bool(value)
    except (ValueError, TypeError):
        return False
    return True


def _truth(value: Any) -> bool | dict[str, Any]:
    return {name: _truth(each) for name, each in value.items()} if isinstance(value, Mapping) else bool(value)


def _is_boolean(value: Any) -> bool:
    # numpy's own booleans come from comparing array elements; they are not a subclass of bool.
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def _require(holds: bool, method: str, part: str, expected: str, value: Any) -> None:
    if not holds:
        raise EpisodeError(f"{method} must return {part} as {expected}, got {_short(value)}")


def _short(value: Any) -> str:
    text = shown(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
