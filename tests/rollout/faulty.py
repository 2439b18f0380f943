"""Environments that wait, count, crash, hang and lie, for the tests of execution."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from turnwise.envs import Env


class Walk(Env):
    """A few noisy steps; the observation shows the environment's own draws, so any disturbance is visible."""

    def __init__(self, *, split: str = "train", length: int = 3, sleep: float = 0.0, mark: str = "") -> None:
        super().__init__(split=split)
        self.length, self.sleep, self.mark = length, sleep, mark

    def reset(self, seed=None, task=None) -> Any:
        super().reset(seed=seed)
        self.turn = 0
        return f"start {self.rng.random()} {task}", {"state_key": "start"}

    def step(self, action) -> Any:
        self.wait()
        self.turn += 1
        done = self.turn == self.length
        info = {"valid": action != "bad", "state_key": f"turn {self.turn}", "pid": os.getpid()}
        return f"{self.rng.random()} after {action}", self.rng.random(), done, False, info

    def wait(self) -> None:
        """Real latency that differs between runs: it must not change the outcome."""
        if self.sleep:
            time.sleep(random.random() * self.sleep)

    def sample_random_action(self):
        return f"go {self.rng.randrange(1000)}"

    def close(self) -> None:
        if self.mark:
            with Path(self.mark).open("a") as file:
                file.write("closed\n")


class ThreadWalk(Walk):
    execution = "thread"


class ProcessWalk(Walk):
    execution = "process"


class AsyncWalk(Walk):
    async def reset(self, seed=None, task=None):
        return super().reset(seed=seed, task=task)

    async def step(self, action):
        await asyncio.sleep(random.random() * self.sleep)
        self.turn += 1
        done = self.turn == self.length
        info = {"valid": action != "bad", "state_key": f"turn {self.turn}", "pid": os.getpid()}
        return f"{self.rng.random()} after {action}", self.rng.random(), done, False, info


class Bad(Walk):
    """Goes wrong at its second step, in the way that `how` names."""

    def __init__(self, *, how: str, mark: str = "") -> None:
        super().__init__(mark=mark)
        self.how = how

    def step(self, action):
        return super().step(action) if self.turn == 0 else self.go_wrong(action)

    def go_wrong(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        match self.how:
            case "raise":
                raise RuntimeError("the tool fell over")
            case "exit":
                sys.exit(3)
            case "stop iteration":
                raise StopIteration
            case "hang":
                time.sleep(30)
            case "die":
                os.kill(os.getpid(), 9)
            case "four values":
                return observation, reward, terminated, info
            case "no text":
                return None, reward, terminated, truncated, info
            case "nan":
                return observation, float("nan"), terminated, truncated, info
            case "text reward":
                return observation, "1.0", terminated, truncated, info
            case "integer flag":
                return observation, reward, 1, truncated, info
            case "wrong parts":
                return observation, reward, terminated, truncated, {"reward_parts": 3}
            case "wrong seat":
                return observation, reward, terminated, truncated, {"seat": "nobody"}
            case "huge reward":
                return observation, 10**400, terminated, truncated, info
            case "several truths":
                return observation, reward, terminated, truncated, {"valid": SeveralTruths()}
            case "cancelled":
                raise asyncio.CancelledError
            case "interrupt":
                raise KeyboardInterrupt
            case "own base":
                raise BareError("neither an Exception nor an exit")
            case "silent error":
                raise SilentError
            case "single precision":
                return observation, 1e300, terminated, truncated, info
            case "huge part":
                return observation, reward, terminated, truncated, {"reward_parts": {"style": 1e300}}
        raise AssertionError(f"no such way: {self.how}")


class BareError(BaseException):
    """Caught by no `except Exception`."""


class SilentError(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class SeveralTruths:
    """Neither true nor false, as an array of numbers."""

    def __bool__(self) -> bool:
        raise ValueError("the truth value is ambiguous")


class ThreadBad(Bad):
    execution = "thread"


class ProcessBad(Bad):
    execution = "process"


class LeakingCancel(AsyncWalk):
    """Something inside was cancelled, and the step lets it out."""

    async def step(self, action):
        raise asyncio.CancelledError


class Blocking(AsyncWalk):
    """An asynchronous step that holds its event loop, where `how` says so; else it waits as it should."""

    def __init__(self, *, how: str = "wait", seconds: float = 30.0) -> None:
        super().__init__()
        self.how, self.seconds = how, seconds

    async def step(self, action):
        if self.how == "block":
            time.sleep(self.seconds)
        elif self.how == "hang":
            await asyncio.sleep(self.seconds)
        elif self.how == "swallow":
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(self.seconds)
        elif self.how == "interrupt":
            raise KeyboardInterrupt
        await asyncio.sleep(0.05)
        return await super().step(action)


class LateBlocking(Blocking):
    """Nothing about the class says that its answers are to be waited for."""

    def reset(self, seed=None, task=None):
        return Walk.reset(self, seed=seed, task=task)

    def step(self, action):
        return super().step(action)


class Nobody(Walk):
    seats = ()


class HangingReset(Walk):
    execution = "thread"

    def reset(self, seed=None, task=None):
        time.sleep(30)


class RaisingInit(Walk):
    def __init__(self) -> None:
        raise RuntimeError("no such game file")


class RaisingClose(Walk):
    def close(self) -> None:
        raise RuntimeError("already gone")


class Duel(Env):
    """Two seats in turn; white is paid before its first turn, and black once more after its last."""

    seats = ("white", "black")

    def reset(self, seed=None, task=None):
        super().reset(seed=seed)
        self.turn = 0
        return "white, begin", {"seat": "white"}

    def step(self, action) -> Any:
        self.turn += 1
        done = self.turn == 3  # white, black, white
        rewards = {"white": 1.0, "black": 0.25} if self.turn != 2 else {"black": 2.0}
        seat = self.seats[self.turn % 2]
        return (
            f"turn {self.turn}",
            rewards.get(self.seats[(self.turn + 1) % 2], 0.0),
            done,
            False,
            {
                "seat": seat,
                "rewards": rewards,
            },
        )
