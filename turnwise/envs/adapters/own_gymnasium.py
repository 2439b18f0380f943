"""The user's own Gymnasium class, in words: `make("my_module:MyWorld")`."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from turnwise.envs.adapters.names import last_named
from turnwise.envs.base import SPLITS, Env, Execution, Info, Reset, Step

MAX_NUMBERS = 256
"""Most numbers in an observation that is still shown as text."""


class OwnGymnasium(Env):
    """Any Gymnasium environment with text or discrete actions.

    Discrete actions are named by the class's `action_names` (a sequence, in the order of their numbers) or numbered;
    the last name or number in a turn counts. Observations that are not text are shown as numbers, unless the world
    renders itself as text (`render_mode="ansi"`). The class may have `oracle()`, `reward_range` and `execution`.
    """

    def __init__(self, inner: gymnasium.Env[Any, Any]) -> None:
        split = getattr(inner, "split", "train")
        super().__init__(split=split if split in SPLITS else "train")
        self.inner: Any = inner
        self.actions = _actions(inner)

    @property
    def reward_range(self) -> tuple[float, float]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The world's own bounds, or none."""
        return getattr(self.inner.unwrapped, "reward_range", (-math.inf, math.inf))

    @property
    def execution(self) -> Execution:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where the class says that its steps run; inline by default."""
        return getattr(self.inner.unwrapped, "execution", "inline")

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Reset the world with the same seed; a task is one of its `options`."""
        super().reset(seed=seed)
        observation, info = self.inner.reset(seed=seed, options=None if task is None else {"task": task})
        text = self._in_words(observation)
        return (f"{text}\n\n{self._offer()}" if self.actions else text), dict(info)

    def step(self, action: str) -> Step:
        """Take the action that the text names; without one nothing moves, but the turn counts."""
        if not self.actions:
            return self._take(action, action)
        named = last_named(action, list(self.actions))
        if named is None:
            return self._offer(), 0.0, False, False, {"valid": False, "parsed_action": None}
        return self._take(self.actions[named], named)

    def sample_random_action(self) -> str:
        """Any action: its name, or a text of the action space."""
        own = getattr(self.inner.unwrapped, "sample_random_action", None)
        if callable(own):
            return self._named(own())
        if self.actions:
            return self.rng.choice(list(self._names()))
        self.inner.action_space.seed(self.rng.getrandbits(31))
        return self.inner.action_space.sample()

    def oracle(self) -> str:
        """What the world's own `oracle()` would do."""
        return self._named(self.inner.unwrapped.oracle())

    def has_oracle(self) -> bool:
        """Whether the class has an oracle."""
        return callable(getattr(self.inner.unwrapped, "oracle", None))

    def close(self) -> None:
        """Close the world."""
        self.inner.close()

    def _take(self, action: Any, parsed: str) -> Step:
        observation, reward, terminated, truncated, info = self.inner.step(action)
        reported: Info = {"valid": True, "parsed_action": parsed, **info}
        if "is_success" in info:  # the name that other libraries use
            reported.setdefault("success", bool(info["is_success"]))
        return self._in_words(observation), float(reward), bool(terminated), bool(truncated), reported

    def _named(self, action: Any) -> str:
        if not self.actions or isinstance(action, str):
            return str(action)
        return next(name for name, number in self.actions.items() if number == int(action))

    def _names(self) -> dict[str, int]:
        """One name per action: the first one, which is a word if there is one."""
        by_number = {number: name for name, number in reversed(self.actions.items())}
        return {by_number[number]: number for number in sorted(by_number)}

    def _offer(self) -> str:
        return f"Actions: {', '.join(self._names())}."

    def _in_words(self, observation: Any) -> str:
        if not isinstance(observation, str) and self.inner.render_mode == "ansi":
            return str(self.inner.render())
        return tell(observation)


def tell(observation: Any) -> str:
    """An observation in words; ValueError for one that has none, such as an image."""
    if isinstance(observation, Mapping):
        return "\n".join(f"{key}: {tell(value)}" for key, value in observation.items())
    if isinstance(observation, np.ndarray | np.generic):
        if observation.size > MAX_NUMBERS:
            raise ValueError(
                f"an observation of {observation.size} numbers is not text; put a gymnasium.ObservationWrapper around "
                "the environment that says in words what is there, or give it render_mode='ansi'"
            )
        return str(observation.tolist())
    if isinstance(observation, list | tuple):
        return ", ".join(tell(value) for value in observation)
    return str(observation)


def _actions(inner: gymnasium.Env[Any, Any]) -> dict[str, int]:
    """Discrete actions by the names a turn may use, words first; empty if actions are texts."""
    space = inner.action_space
    if isinstance(space, spaces.Text):
        return {}
    if not isinstance(space, spaces.Discrete):
        raise ValueError(
            f"{type(inner.unwrapped).__name__} has the action space {space}; give it spaces.Text or spaces.Discrete, "
            "or put a gymnasium.ActionWrapper around it that turns text into its actions"
        )
    numbers = range(int(space.start), int(space.start + space.n))
    words = _words(inner)
    if words and len(words) != len(numbers):
        raise ValueError(
            f"{type(inner.unwrapped).__name__} has {len(numbers)} actions but {len(words)} action_names; name each one"
        )
    named = {str(word).lower(): number for word, number in zip(words, numbers, strict=False)}
    return {**named, **{str(number): number for number in numbers if str(number) not in named}}


def _words(inner: gymnasium.Env[Any, Any]) -> Sequence[str]:
    world: Any = inner.unwrapped
    kind = getattr(world, "actions", None)
    if isinstance(kind, type) and issubclass(kind, enum.IntEnum):  # as in MiniGrid
        return [action.name for action in sorted(kind)][: int(getattr(inner.action_space, "n", 0))]
    return getattr(world, "action_names", ())
