"""Limits on turns, tokens and seconds. All truncate, and all keep the last observation."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import ClassVar

from turnwise.envs.base import Env, Reset, Step
from turnwise.envs.wrappers.wrapper import Wrapper


class TurnLimit(Wrapper):
    """Truncates after a number of turns: `TurnLimit(env, max_turns=8)`."""

    def __init__(self, env: Env, *, max_turns: int) -> None:
        super().__init__(env)
        self.max_turns = _positive("max_turns", max_turns)
        self.turns = 0

    def on_reset(self, reset: Reset) -> Reset:
        """Start counting."""
        self.turns = 0
        return reset

    def on_step(self, action: str, step: Step) -> Step:
        """Count the turn."""
        self.turns += 1
        return _truncate(step) if self.turns >= self.max_turns else step


class TokenBudget(Wrapper):
    """Truncates once observations and actions together reach a number of tokens: `TokenBudget(env, max_tokens=2048)`.

    Pass `count=lambda text: len(tokenizer.encode(text))` for exact numbers.
    """

    shared: ClassVar[frozenset[str]] = Wrapper.shared | {"count"}

    def __init__(self, env: Env, *, max_tokens: int, count: Callable[[str], int] | None = None) -> None:
        super().__init__(env)
        self.max_tokens = _positive("max_tokens", max_tokens)
        self.count = count or rough_token_count
        self.tokens = 0

    def on_reset(self, reset: Reset) -> Reset:
        """Start counting, with the first observation."""
        self.tokens = self.count(reset[0])
        return reset

    def on_step(self, action: str, step: Step) -> Step:
        """Count the action and the answer."""
        self.tokens += self.count(action) + self.count(step[0])
        return _truncate(step) if self.tokens >= self.max_tokens else step


class TimeLimit(Wrapper):
    """Truncates a slow step or a long episode: `TimeLimit(env, step_seconds=5, episode_seconds=60)`.

    An async step is cancelled at its deadline. A sync step cannot be interrupted, so it is checked when it returns; the
    rollout's own deadline guards against one that hangs. A step cut this way says so in `info["timed_out"]`.
    """

    shared: ClassVar[frozenset[str]] = Wrapper.shared | {"clock"}

    def __init__(
        self,
        env: Env,
        *,
        step_seconds: float = float("inf"),
        episode_seconds: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(env)
        self.step_seconds = _positive("step_seconds", step_seconds)
        self.episode_seconds = _positive("episode_seconds", episode_seconds)
        self.clock = clock
        self.started = clock()

    def on_reset(self, reset: Reset) -> Reset:
        """Start the clock of the episode."""
        self.started = self.clock()
        return reset

    def step(self, action: str) -> Step | Awaitable[Step]:
        """Step under both deadlines."""
        begin = self.clock()
        result = self.env.step(action)
        return self._wait(result, begin) if inspect.isawaitable(result) else self._judge(result, begin)

    async def _wait(self, result: Awaitable[Step], begin: float) -> Step:
        room = min(self.step_seconds, self.started + self.episode_seconds - begin)
        try:
            step = await asyncio.wait_for(result, None if room == float("inf") else max(room, 0.0))
        except TimeoutError:
            return "The step took too long and was stopped.", 0.0, False, True, {"timed_out": True}
        return self._judge(step, begin)

    def _judge(self, step: Step, begin: float) -> Step:
        now = self.clock()
        if now - begin <= self.step_seconds and now - self.started < self.episode_seconds:
            return step
        observation, reward, terminated, truncated, info = _truncate(step)
        return observation, reward, terminated, truncated, {**info, "timed_out": True}


def rough_token_count(text: str) -> int:
    """Approximate number of tokens, without a tokenizer: four characters each, rounded up."""
    return -(-len(text) // 4)


def _truncate(step: Step) -> Step:
    """The same step, but the last one. If the environment itself ended the episode, that stays."""
    observation, reward, terminated, truncated, info = step
    return observation, reward, terminated, truncated or not terminated, info


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise ValueError(f"{name} must be above zero, not {value!r}")
    return value
