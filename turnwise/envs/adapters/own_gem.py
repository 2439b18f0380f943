"""The user's own GEM environment: `make("my_module:MyGame")`."""

from __future__ import annotations

import math
from typing import Any

import gem

from turnwise.envs.adapters.gem import full_text
from turnwise.envs.adapters.isolated_random import IsolatedRandom
from turnwise.envs.base import SPLITS, Env, Reset, Step


class OwnGem(Env):
    """Any `gem.Env`, with its prefix and suffix texts in place and its global seeding contained."""

    # GEM draws from the process-global generators: see `isolated_random`.
    execution = "process"

    def __init__(self, inner: gem.Env) -> None:
        split = getattr(inner, "split", "train")
        super().__init__(split=split if split in SPLITS else "train")
        self.inner: Any = inner
        self.random = IsolatedRandom(0)

    @property
    def reward_range(self) -> tuple[float, float]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The game's own bounds, or none."""
        return getattr(self.inner, "reward_range", (-math.inf, math.inf))

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Reset the game with the same seed."""
        super().reset(seed=seed)
        if seed is not None:
            self.random = IsolatedRandom(seed)
        with self.random.swapped_in():
            observation, info = self.inner.reset(seed=seed)
        return full_text(observation, info), dict(info)

    def step(self, action: str) -> Step:
        """Pass the text on."""
        with self.random.swapped_in():
            observation, reward, terminated, truncated, info = self.inner.step(action)
        return full_text(observation, info), float(reward), bool(terminated), bool(truncated), dict(info)

    def sample_random_action(self) -> str:
        """The game's own random action, drawn from our generator."""
        with IsolatedRandom(self.rng.getrandbits(31)).swapped_in():
            return self.inner.sample_random_action()

    def oracle(self) -> str:
        """What the game's own `oracle()` would do."""
        with self.random.swapped_in():
            return self.inner.oracle()

    def has_oracle(self) -> bool:
        """Whether the class has an oracle."""
        return callable(getattr(self.inner, "oracle", None))

    def close(self) -> None:
        """Close the game if it can be closed."""
        if callable(end := getattr(self.inner, "close", None)):
            end()
