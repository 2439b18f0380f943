"""Rewards on top of the environment's own; the parts stay visible in `info["reward_parts"]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from turnwise.envs.base import Env, Info, Reset, Step
from turnwise.envs.wrappers.wrapper import Wrapper
from turnwise.types import ENVIRONMENT

INFINITE = (float("-inf"), float("inf"))


class ShapedReward(Wrapper):
    """Adds a function of the action and the step: `ShapedReward(env, lambda action, step: -len(action) / 1e4)`.

    `bounds` are the bonus's own bounds, from which `reward_range` follows.
    """

    shared: ClassVar[frozenset[str]] = Wrapper.shared | {"bonus"}

    def __init__(
        self,
        env: Env,
        bonus: Callable[[str, Step], float],
        *,
        name: str = "shaping",
        bounds: tuple[float, float] = INFINITE,
    ) -> None:
        super().__init__(env)
        self.bonus = bonus
        self.name = name
        self.bounds = bounds

    @property
    def reward_range(self) -> tuple[float, float]:
        """The environment's bounds widened by the bonus's."""
        return _widen(self.env.reward_range, self.bounds)

    def on_step(self, action: str, step: Step) -> Step:
        """Add the bonus."""
        return _add(self, step, self.name, self.bonus(action, step))


class PotentialReward(Wrapper):
    """Adds gamma * potential(after) - potential(before), which leaves the best policy unchanged (Ng et al., 1999).

    `potential` reads the environment: `PotentialReward(env, lambda env: -env.distance, gamma=0.99)`. A terminal state
    has potential 0, as the proof requires; a truncated one keeps its own.
    """

    shared: ClassVar[frozenset[str]] = Wrapper.shared | {"potential"}

    def __init__(
        self,
        env: Env,
        potential: Callable[[Env], float],
        *,
        gamma: float = 1.0,
        name: str = "potential",
        bounds: tuple[float, float] = INFINITE,
    ) -> None:
        super().__init__(env)
        self.potential = potential
        self.gamma = gamma
        self.name = name
        self.bounds = bounds
        self.before = 0.0

    @property
    def reward_range(self) -> tuple[float, float]:
        """The environment's bounds widened by those given for the difference of potentials."""
        return _widen(self.env.reward_range, self.bounds)

    def on_reset(self, reset: Reset) -> Reset:
        """Record the first potential."""
        self.before = self.potential(self.env)
        return reset

    def on_step(self, action: str, step: Step) -> Step:
        """Add the discounted difference."""
        after = 0.0 if step[2] else self.potential(self.env)
        bonus = self.gamma * after - self.before
        self.before = after
        return _add(self, step, self.name, bonus)


def _add(wrapper: Wrapper, step: Step, name: str, bonus: float) -> Step:
    observation, reward, terminated, truncated, info = step
    parts = info.get("reward_parts") or {ENVIRONMENT: reward}
    shaped: Info = {**info, "reward_parts": {**parts, name: parts.get(name, 0.0) + bonus}}
    actor, rewards = wrapper.acting_seat or wrapper.seats[0], info.get("rewards", {})
    if actor in rewards:  # the table of all seats takes precedence over the step's reward
        shaped["rewards"] = {**rewards, actor: rewards[actor] + bonus}
    return observation, reward + bonus, terminated, truncated, shaped


def _widen(inner: tuple[float, float], bounds: tuple[float, float]) -> tuple[float, float]:
    return inner[0] + bounds[0], inner[1] + bounds[1]
