"""Environments in words that pico knows: one that it learns in seconds, and versions that are slow, faulty or false."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, ClassVar

from turnwise.envs import Env

WANTED = frozenset("abcdefgh1234")
"""Half of pico's words. Random weights seldom end a turn in time, so they succeed in one episode of twenty."""


class Say(Env):
    """Begin each of a few turns with a wanted word, and end it: the share of turns so done is the reward."""

    def __init__(self, *, turns: int = 1, split: str = "train") -> None:
        super().__init__(split=split)
        self.turns = turns

    def reset(self, seed: int | None = None, task: Any = None) -> Any:
        super().reset(seed=seed)
        self.seed, self.turn, self.right = seed or 0, 0, 0
        return self._observation(), {}

    def step(self, action: str) -> Any:
        self.turn += 1
        self.right += action.split(" ")[0] in WANTED
        done = self.turn == self.turns
        reward = self.right / self.turns if done else 0.0
        return self._observation(), reward, done, False, {"success": self.right == self.turns} if done else {}

    def sample_random_action(self) -> str:
        return self.rng.choice("abcdefgh")

    def oracle(self) -> str:
        return "a"

    def _observation(self) -> str:
        return f"from {self.rng.choice('efgh')} {self.rng.choice('1234')}"


class Duel(Env):
    """Two seats in turn: each earns the share of its own turns that begin with a wanted word."""

    seats = ("left", "right")

    def __init__(self, *, rounds: int = 1, split: str = "train") -> None:
        super().__init__(split=split)
        self.rounds = rounds

    def reset(self, seed: int | None = None, task: Any = None) -> Any:
        super().reset(seed=seed)
        self.moves = 0
        return self._observation(), {"seat": "left"}

    def step(self, action: str) -> Any:
        actor, self.moves = self.seats[self.moves % 2], self.moves + 1
        done = self.moves == 2 * self.rounds
        rewards = {actor: (action.split(" ")[0] in WANTED) / self.rounds}
        info = {"seat": self.seats[self.moves % 2], "rewards": rewards}
        return self._observation(), rewards[actor], done, False, info

    def sample_random_action(self) -> str:
        return self.rng.choice("abcdefgh")

    def oracle(self) -> str:
        return "a"

    def _observation(self) -> str:
        return f"from {self.rng.choice('efgh')} {self.rng.choice('1234')}"


class Slow(Say):
    """Every step takes `seconds`, give or take `jitter` of them that no seed decides."""

    def __init__(self, *, seconds: float = 0.0, jitter: float = 0.0, turns: int = 2, split: str = "train") -> None:
        super().__init__(turns=turns, split=split)
        self.seconds, self.jitter = seconds, jitter

    async def step(self, action: str) -> Any:
        await asyncio.sleep(self.seconds + random.uniform(0, self.jitter))
        return super().step(action)


class Meeting(Say):
    """An episode begins only once one of the next step has come to begin too, or when its patience ends."""

    come: ClassVar[set[int]] = set()
    """Steps whose episodes have come."""
    in_vain: ClassVar[set[int]] = set()
    """Steps that waited for the next one until their patience ended."""

    def __init__(self, *, episodes: int, steps: int, patience: float, split: str = "train") -> None:
        super().__init__(split=split)
        self.episodes, self.steps, self.patience = episodes, steps, patience

    async def reset(self, seed: int | None = None, task: Any = None) -> Any:
        step = (seed or 0) // self.episodes + 1
        self.come.add(step)
        try:
            async with asyncio.timeout(self.patience):
                while step < self.steps and step + 1 not in self.come:
                    await asyncio.sleep(0.001)
        except TimeoutError:
            self.in_vain.add(step)
        return super().reset(seed=seed, task=task)


class Faulty(Say):
    """A share of the steps raises, hangs or returns what no environment may; which, the seed decides."""

    def __init__(self, *, share: float = 0.1, turns: int = 2, split: str = "train") -> None:
        super().__init__(turns=turns, split=split)
        self.share = share

    async def step(self, action: str) -> Any:
        # The fault is drawn apart from the observations: splits and seeds of tasks stay as they are.
        chance = random.Random(f"{self.split}:{self.seed}:{self.turn}:{action}")
        if chance.random() < self.share:
            return await self._fail(chance.choice(("raise", "hang", "reward", "shape")))
        return super().step(action)

    async def _fail(self, how: str) -> Any:
        if how == "raise":
            raise RuntimeError("the tool broke")
        if how == "hang":
            await asyncio.sleep(3600)
        return ("from e 1", float("nan"), False, False, {}) if how == "reward" else "from e 1"


class Clingy(Say):
    """Plays well and cannot be closed."""

    def close(self) -> None:
        raise RuntimeError("the door is stuck")


class Blocks(Say):
    """An asynchronous step that blocks its event loop in every fourth task."""

    async def step(self, action: str) -> Any:
        if self.seed % 4 == 3:
            time.sleep(30)
        return super().step(action)


DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


class Odd:
    """An object that nothing can be said about."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


class OddError(Exception):
    """An error that cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Peculiar(Say):
    """Reports objects that cannot be written down, and fails in ways that cannot be told."""

    def step(self, action: str) -> Any:
        if self.seed % 4 == 1:
            raise OddError
        if self.seed % 4 == 2:
            raise KeyboardInterrupt
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, "odd": Odd(), "deep": DEEP}


class Flood(Say):
    """Every other task begins with an observation of `size` characters."""

    def __init__(self, *, size: int = 10_000_000, split: str = "train") -> None:
        super().__init__(split=split)
        self.size = size

    def reset(self, seed: int | None = None, task: Any = None) -> Any:
        observation, info = super().reset(seed=seed, task=task)
        return ("a " * (self.size // 2) if self.seed % 2 else observation), info


class DeadSteps(Say):
    """Begins every episode and fails in every step."""

    def step(self, action: str) -> Any:
        raise RuntimeError("no database")


class Dead(Say):
    """Never gets as far as its first observation."""

    def reset(self, seed: int | None = None, task: Any = None) -> Any:
        raise RuntimeError("no database")


class Flips(Say):
    """From a task on, training tasks pay for what was wrong: the sign of the reward is turned round."""

    reward_range = (-1.0, 1.0)

    def __init__(self, *, after: int = 10**9, split: str = "train") -> None:
        super().__init__(split=split)
        self.after = after

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        flipped = self.split == "train" and self.seed % 1_000_003 >= self.after
        return observation, -reward if flipped else reward, terminated, truncated, info
