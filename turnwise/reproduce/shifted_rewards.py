"""Rewards that are right only up to a shift of each task, as those of a reward model are."""

from __future__ import annotations

from random import Random

from turnwise.envs.base import Env, Reset, Step
from turnwise.envs.wrappers.wrapper import Wrapper


class ShiftedReward(Wrapper):
    """Adds to the last reward of an episode a number that depends on its first observation alone.

    δ(x) ~ N(0, spread²): the same for all answers to a prompt, so it says nothing about which is better. What the
    environment reports of success and scores stays as it is.
    """

    def __init__(self, env: Env, *, spread: float) -> None:
        super().__init__(env)
        self.spread, self.shift = spread, 0.0

    @property
    def reward_range(self) -> tuple[float, float]:
        """A normal number has no bounds."""
        return float("-inf"), float("inf")

    def on_reset(self, reset: Reset) -> Reset:
        """Draw the shift of this prompt."""
        self.shift = Random(f"shift:{reset[0]}").gauss(0.0, self.spread)
        return reset

    def on_step(self, action: str, step: Step) -> Step:
        """Shift the reward where the episode ends."""
        observation, reward, terminated, truncated, info = step
        if terminated or truncated:
            reward += self.shift
            info = {"success": reward - self.shift > 0, **info}
        return observation, reward, terminated, truncated, info
