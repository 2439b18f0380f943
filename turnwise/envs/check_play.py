"""How the env doctor plays: it records whole episodes, so that two of them can be compared."""

from __future__ import annotations

import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from turnwise.envs.base import Env, Info, won
from turnwise.envs.faults import EpisodeError
from turnwise.envs.process import EnvSource
from turnwise.envs.workers import Host, Workers

_MEANINGFUL = ("success", "valid", "state_key", "reward_parts", "parsed_action", "seat", "rewards")
"""The info keys that must repeat; others may contain timings."""
_PLAIN_ACTIONS = ("1", "yes", "look", r"\boxed{2}", "<answer>A</answer>")
"""What to say if the environment has no random action."""

_SHARE = 0.25
"""Share of the remaining time that one check may use: many short checks tell more than one long one."""
_EPISODES = 4
"""Most episodes that a check plays on one seed."""

Choose = Callable[[Host], Awaitable[str]]
Verdict = Literal["pass", "note", "defect"]
Outcome = tuple[Verdict, str]


class OutOfTimeError(Exception):
    """The time for a check is used up; nothing was wrong so far."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One step: the action and the answer."""

    action: str
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Info
    seconds: float = field(compare=False)

    @property
    def over(self) -> bool:
        """Whether the episode ended here."""
        return self.terminated or self.truncated


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """One episode as far as it was played."""

    seed: int
    first: str
    info: Info
    moments: list[Moment]

    @property
    def reward(self) -> float:
        """Sum of all rewards."""
        return sum(moment.reward for moment in self.moments)

    @property
    def success(self) -> bool:
        """What the environment reported at the end, otherwise whether any reward was earned."""
        return bool(self.moments) and won(self.moments[-1].info, self.reward)

    @property
    def drawn(self) -> bool:
        """Whether a game of several seats ended with the same reward for all."""
        rewards = self.moments[-1].info.get("rewards", {}) if self.moments else {}
        return len(rewards) > 1 and self.moments[-1].over and len(set(rewards.values())) == 1

    def difference(self, other: Transcript) -> str | None:
        """Where `other` differs from this one; None if it does not."""
        if (self.first, self.info) != (other.first, other.info):
            return f"seed {self.seed}, reset: {_shorten(self.first)} became {_shorten(other.first)}"
        for turn, (mine, theirs) in enumerate(zip(self.moments, other.moments, strict=False), start=1):
            for part in ("action", "observation", "reward", "terminated", "truncated", "info"):
                before, after = getattr(mine, part), getattr(theirs, part)
                if before != after:
                    return f"seed {self.seed}, turn {turn}: {part} {_shorten(before)} became {_shorten(after)}"
        return None


@dataclass(kw_only=True)
class Patient:
    """The environment being checked, and everything it was seen to do."""

    source: EnvSource
    workers: Workers
    seeds: int
    turns: int
    deadline: float
    """Deadline of one answer."""
    ends: float = math.inf
    """When the whole check must end."""
    seen: list[Transcript] = field(default_factory=list[Transcript])
    can_sample: bool = True
    hurried: bool = False
    """Whether less was played than intended."""
    calls: int = 0
    seconds: float = 0.0
    """Resets and steps so far, and their time."""
    _pause: float = math.inf
    """When the current check must end."""

    def grant_time(self) -> None:
        """Give the next check its share of the remaining time, with only as many seeds and turns as fit."""
        if math.isinf(self.ends):
            return
        now = time.perf_counter()
        share = _SHARE * max(self.ends - now, 0.0)
        self._pause = now + share
        if self.calls and (fitting := int(share * self.calls / self.seconds) // _EPISODES) < self.seeds * self.turns:
            self.seeds, self.turns, self.hurried = 1, max(min(fitting, self.turns), 2), True

    def _require_time(self) -> None:
        if time.perf_counter() > self._pause:
            self.hurried = True
            raise OutOfTimeError

    @property
    def moments(self) -> list[Moment]:
        """Every step seen so far."""
        moments = [moment for transcript in self.seen for moment in transcript.moments]
        if not moments:
            raise OutOfTimeError  # without a limit the first check plays some
        return moments

    @asynccontextmanager
    async def instance(self) -> AsyncIterator[Host]:
        """Another instance of the environment, closed at the end."""
        host = await self.workers.open(self.source, deadline=self.deadline)
        try:
            yield host
        finally:
            await host.close(deadline=self.deadline)

    async def ask(self, job: Callable[[Env], Any]) -> Any:
        """The result of `job` on a new instance."""
        async with self.instance() as host:
            return await host.call(job, deadline=self.deadline)

    def random_player(self, seed: int | str) -> Choose:
        """Plays random well-formed actions; equal seeds choose equally."""
        generator = random.Random(f"player:{seed}")

        async def choose(host: Host) -> str:
            if not self.can_sample:
                return generator.choice(_PLAIN_ACTIONS)
            action = await host.random_action(generator, deadline=self.deadline)
            if not isinstance(action, str):
                raise EpisodeError(f"sample_random_action must return a string, got {_shorten(action)}")
            return action

        return choose

    async def reset(self, host: Host, seed: int) -> tuple[str, Info]:
        """Start an episode; keeps only the part of info that must repeat."""
        self._require_time()
        started = time.perf_counter()
        observation, info = await host.reset(seed, None, deadline=self.deadline)
        self._count(time.perf_counter() - started)
        return observation, _meaningful(info)

    async def step(self, host: Host, action: str) -> Moment:
        """One recorded step."""
        self._require_time()
        started = time.perf_counter()
        observation, reward, terminated, truncated, info = await host.step(action, deadline=self.deadline)
        seconds = time.perf_counter() - started
        self._count(seconds)
        return Moment(
            action=action,
            observation=observation,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            info=_meaningful(info),
            seconds=seconds,
        )

    def _count(self, seconds: float) -> None:
        self.calls, self.seconds = self.calls + 1, self.seconds + seconds

    async def play(self, host: Host, choose: Choose, seed: int, *, turns: int | None = None) -> Transcript:
        """One episode on this instance, at most `turns` long."""
        first, info = await self.reset(host, seed)
        transcript = Transcript(seed=seed, first=first, info=info, moments=[])
        self.seen.append(transcript)  # now: what was seen before the time was up counts
        await self.go_on(host, choose, turns, transcript.moments)
        return transcript

    async def go_on(
        self, host: Host, choose: Choose, turns: int | None = None, moments: list[Moment] | None = None
    ) -> list[Moment]:
        """Continue from the current state, appending to `moments`."""
        moments = [] if moments is None else moments
        while len(moments) < (turns or self.turns) and not (moments and moments[-1].over):
            moments.append(await self.step(host, await choose(host)))
        return moments

    async def play_new(self, choose: Choose, seed: int, *, turns: int | None = None) -> Transcript:
        """One episode on a new instance."""
        async with self.instance() as host:
            return await self.play(host, choose, seed, turns=turns)


def _meaningful(info: Info) -> Info:
    return {key: info[key] for key in _MEANINGFUL if key in info}


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:28]} ... {text[-28:]}"
