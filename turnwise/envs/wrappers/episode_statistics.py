"""A summary of each episode."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from turnwise.envs.base import Env, Reset, Step
from turnwise.envs.wrappers.wrapper import Wrapper


class EpisodeStatistics(Wrapper):
    """Adds `info["episode"]` to the last step: turns, reward, seconds and the share of valid actions."""

    shared: ClassVar[frozenset[str]] = Wrapper.shared | {"clock"}

    def __init__(self, env: Env, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(env)
        self.clock = clock
        self._start()

    def on_reset(self, reset: Reset) -> Reset:
        """Start a new summary."""
        self._start()
        return reset

    def on_step(self, action: str, step: Step) -> Step:
        """Count the turn, and report at the end."""
        observation, reward, terminated, truncated, info = step
        self.turns += 1
        self.reward += reward
        self.valid += bool(info.get("valid", True))
        if terminated or truncated:
            info = {**info, "episode": self._summary()}
        return observation, reward, terminated, truncated, info

    def _start(self) -> None:
        self.turns, self.reward, self.valid = 0, 0.0, 0
        self.started = self.clock()

    def _summary(self) -> dict[str, float]:
        return {
            "turns": self.turns,
            "reward": self.reward,
            "seconds": self.clock() - self.started,
            "valid_rate": self.valid / self.turns,
        }
