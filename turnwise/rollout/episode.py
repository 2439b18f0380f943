"""One episode: an environment and its agents, turn by turn, until a StopReason. Failures are returned as values."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from turnwise.envs.base import ONE_SEAT, Env, Info
from turnwise.envs.faults import FAULTS, EpisodeError, fault_of, is_cancellation
from turnwise.envs.process import EnvSource
from turnwise.envs.workers import Host
from turnwise.envs.wrappers.named import Choice
from turnwise.rollout.agents import Action, Agent, View
from turnwise.rollout.env_messages import call_row
from turnwise.tools.native_calls import MESSAGES
from turnwise.types import CUTS, StopReason, Trajectory, Turn

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class EpisodeSpec:
    """One episode to play: `EpisodeSpec(env="search/geo-2hop", seed=17)`. Tries at one task share `group`."""

    env: str | Callable[..., Env]
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    wrappers: Sequence[Choice] = ()
    """Wrappers around the environment, innermost first."""
    seed: int = 0
    task: Any = None
    group: str = ""
    """Empty: named after the environment and the seed, and after `kwargs`, `task` and `wrappers` if there are any."""
    index: int = 0
    """Which try at the task this is."""

    @classmethod
    def of(cls, source: EnvSource, *, seed: int, task: Any = None, group: str = "") -> EpisodeSpec:
        """An episode in the environment that `source` builds."""
        env, kwargs, wrappers = source.env, source.kwargs, source.wrappers
        return cls(env=env, kwargs=kwargs, wrappers=wrappers, seed=seed, task=task, group=group)

    @property
    def source(self) -> EnvSource:
        """How to build the environment."""
        return EnvSource(env=self.env, kwargs=self.kwargs, wrappers=self.wrappers)

    @property
    def group_id(self) -> str:
        """The name that tries at one task share."""
        return self.group or f"{self.source.name}:{self.seed}{self._digest}"

    @property
    def _digest(self) -> str:
        decisive = (sorted(self.kwargs.items()), self.task, *map(dict, self.wrappers))
        if decisive == ([], None):
            return ""
        text = re.sub(r" at 0x[0-9a-f]+", "", repr(decisive))  # addresses change
        return f"#{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def id(self) -> str:
        """The episode's name; with the run's seed it decides every random draw of the agents."""
        return f"{self.group_id}/{self.index}"


def tries(spec: EpisodeSpec, count: int) -> list[EpisodeSpec]:
    """`count` tries at one task: equal environments, differently seeded agents."""
    return [replace(spec, index=index) for index in range(count)]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long anything may take, in seconds, and how many turns a seat has."""

    max_turns: int = 64
    step_seconds: float = 60.0
    reset_seconds: float = 120.0
    act_seconds: float = 600.0
    close_seconds: float = 10.0

    def __post_init__(self) -> None:
        wrong = [name for name, value in vars(self).items() if value <= 0]
        if wrong:
            raise ValueError(f"limits must be above zero: {', '.join(wrong)}")


@dataclass(kw_only=True)
class _Seat:
    """What one seat has done so far, and its reward since its last view."""

    agent: Agent
    rng: random.Random
    turns: list[Turn] = field(default_factory=list[Turn])
    earned: float = 0.0
    final_observation: str = ""

    def add(self, turn: Turn) -> None:
        """What comes before the first turn belongs to the first turn."""
        turn.reward = 0.0 if self.turns else self.earned
        self.earned = 0.0
        self.turns.append(turn)

    def pay(self, amount: float) -> None:
        """Late rewards belong to the turn that earned them; those before the first turn wait for it."""
        self.earned += amount
        if self.turns:
            self.turns[-1].reward += amount


class Episode:
    """Plays one spec on one host. Whatever the environment or an agent does, `play` ends with trajectories."""

    def __init__(self, spec: EpisodeSpec, agents: Agent | Mapping[str, Agent], limits: Limits, *, seed: int) -> None:
        self.fault: EpisodeError | None = None
        self._spec, self._agents, self._limits, self._seed = spec, agents, limits, seed
        self._seats: dict[str, _Seat] = {}
        self._info: Info = {}
        self._stop, self._terminated, self._truncated = StopReason.DONE, False, False

    async def play(self, open_host: Callable[[], Awaitable[Host]]) -> list[Trajectory]:
        """Open the environment, play to the end, close it. Agents are told the end even if we are cancelled."""
        try:
            await self._open_and_play(open_host)
        except EpisodeError as fault:
            self._fail(fault)
        except asyncio.CancelledError:
            self._fail(EpisodeError("the run was cancelled", culprit="agent", timed_out=True))
            raise
        finally:
            if not self._seats:  # it failed before it could name its seats
                self._take_seats(ONE_SEAT if isinstance(self._agents, Agent) else tuple(self._agents))
            trajectories = [await self._finish(name) for name in self._seats]
        return trajectories

    async def _open_and_play(self, open_host: Callable[[], Awaitable[Host]]) -> None:
        host = await open_host()
        try:
            await self._play(host)
        finally:
            await self._close(host)

    async def _close(self, host: Host) -> None:
        try:
            await host.close(deadline=self._limits.close_seconds)
        except EpisodeError as fault:  # counted, but the episode itself is complete
            self.fault = fault

    def _take_seats(self, names: tuple[str, ...]) -> None:
        for name in names:
            agent = self._agents if isinstance(self._agents, Agent) else self._agents.get(name)
            if agent is None:
                assert not isinstance(self._agents, Agent)
                others = ", ".join(repr(other) for other in self._agents if other not in names)
                hint = f" ({others} is not one of its seats)" if others else ""
                raise ValueError(
                    f"{self._spec.source.name} has a seat {name!r} without an agent; add agents[{name!r}]{hint}"
                )
            self._seats[name] = _Seat(agent=agent, rng=random.Random(f"{self._seed}:{self._spec.id}:{name}"))

    async def _play(self, host: Host) -> None:
        limits = self._limits
        observation, self._info = await host.reset(self._spec.seed, self._spec.task, deadline=limits.reset_seconds)
        names = await host.seats(deadline=limits.step_seconds)
        self._take_seats(names)
        while True:
            name = self._reader(names)
            seat = self._seats[name]
            if len(seat.turns) == limits.max_turns:
                await self._pay_cut(host, seat)
                return self._cut(StopReason.MAX_TURNS, seat, observation)
            action, seconds = await self._act(host, name, observation)
            if action.text or action.sampled_ids or action.stop is None:
                seat.add(_turn(action, observation, self._info, seconds, number=len(seat.turns)))
            if action.stop is not None:
                if action.stop in CUTS:
                    seat.pay(float(self._info.get("cut_reward", 0.0)))
                    await self._pay_cut(host, seat, action.text)
                return self._cut(action.stop, seat, observation)
            observation = await self._step(host, name, seat.turns[-1])
            if self._terminated or self._truncated:
                return self._show_end(observation)

    def _reader(self, names: tuple[str, ...]) -> str:
        name = self._info.get("seat", names[0])
        if "seat" not in self._info and len(names) > 1:
            raise EpisodeError(f"info['seat'] must name the seat that acts next, one of {', '.join(names)}")
        if name not in self._seats:
            raise EpisodeError(f"info['seat'] is {name!r}, which is not one of the seats {', '.join(names)}")
        return name

    async def _act(self, host: Host, name: str, observation: str) -> tuple[Action, float]:
        seat, step_seconds = self._seats[name], self._limits.step_seconds
        view = View(
            episode=self._spec.id,
            seat=name,
            turn=len(seat.turns),
            observation=observation,
            info=self._info,
            reward=seat.earned,
            rng=seat.rng,
            oracle=partial(host.oracle, deadline=step_seconds),
            random_action=partial(host.random_action, seat.rng, deadline=step_seconds),
        )
        started = time.perf_counter()
        action = await self._ask(partial(seat.agent.act, view), self._limits.act_seconds)
        if not isinstance(action, Action):
            raise EpisodeError(f"an agent must return an Action, got {type(action).__name__}", culprit="agent")
        return action, time.perf_counter() - started

    async def _ask(self, question: Callable[[], Awaitable[Value]], deadline: float) -> Value:
        timer = asyncio.timeout(deadline)
        try:
            async with timer:
                return await question()
        except EpisodeError:  # the agent asked the environment something, and that failed
            raise
        except FAULTS as error:  # the edge: whatever an agent raises becomes a value
            if is_cancellation(error):
                raise
            if timer.expired():
                text = f"no answer from the agent within {deadline:g} s"
                raise EpisodeError(text, culprit="agent", timed_out=True) from error
            raise fault_of(error, culprit="agent") from error

    async def _step(self, host: Host, name: str, turn: Turn) -> str:
        started = time.perf_counter()
        observation, reward, self._terminated, truncated, self._info = await host.step(
            turn.action, deadline=self._limits.step_seconds
        )
        self._truncated = truncated and not self._terminated
        turn.env_seconds = time.perf_counter() - started
        turn.valid = bool(self._info.get("valid", True))
        turn.reward_parts = dict(self._info.get("reward_parts", {}))
        self._pay({name: reward, **self._info.get("rewards", {})})
        return observation

    async def _pay_cut(self, host: Host, seat: _Seat, action: str = "") -> None:
        """What a limit's end of the episode earns, where the environment has promised to say."""
        if not self._info.get("pays_cuts") or not seat.turns:
            return
        _, reward, _, _, info = await host.cut(action, deadline=self._limits.step_seconds)
        last = seat.turns[-1]
        # Rewards that were paid before stay, as do the other parts of the same turn.
        parts = {name: last.reward_parts.get(name, 0.0) + part for name, part in info.pop("reward_parts", {}).items()}
        last.reward_parts = {**last.reward_parts, **parts}
        self._info |= info
        seat.pay(reward)

    def _pay(self, rewards: Mapping[str, float]) -> None:
        for name, reward in rewards.items():
            if name not in self._seats:
                raise EpisodeError(
                    f"info['rewards'] names {name!r}, which is not one of the seats {', '.join(self._seats)}"
                )
            self._seats[name].pay(float(reward))

    def _show_end(self, observation: str) -> None:
        """All may read how a game ended; the last observation of a cut one belongs to the seat that reads it."""
        for name, seat in self._seats.items():
            if self._terminated or len(self._seats) == 1 or name == self._info.get("seat"):
                seat.final_observation = observation

    def _cut(self, stop: StopReason, reader: _Seat, observation: str) -> None:
        self._stop, self._truncated = stop, True
        reader.final_observation = observation

    def _fail(self, fault: EpisodeError) -> None:
        self.fault = fault
        self._stop = StopReason.TIMEOUT if fault.timed_out else StopReason.ENV_ERROR
        self._terminated, self._truncated = False, True
        self._info = {**self._info, "error": str(fault), "culprit": fault.culprit}
        if fault.trace:
            self._info["traceback"] = fault.trace

    async def _finish(self, name: str) -> Trajectory:
        seat = self._seats[name]
        trajectory = Trajectory(
            id=self._spec.id if len(self._seats) == 1 else f"{self._spec.id}/{name}",
            episode=self._spec.id,
            turns=seat.turns,
            stop=self._stop,
            terminated=self._terminated,
            truncated=self._truncated,
            task=self._spec.task,
            kwargs=self._spec.kwargs,
            seed=self._spec.seed,
            seat=name,
            final_observation=seat.final_observation,
            info=self._info_of(name),
        )
        try:
            await self._ask(partial(seat.agent.end, trajectory), self._limits.close_seconds)
        except EpisodeError as fault:
            self._fail(fault)
            trajectory = replace(
                trajectory, stop=self._stop, truncated=True, terminated=False, info=self._info_of(name)
            )
        # An open question of a program and a promise to us are not data.
        trajectory.info = {key: value for key, value in trajectory.info.items() if key not in ("call", "pays_cuts")}
        return trajectory

    def _info_of(self, name: str) -> Info:
        """The last info with the seat's own success."""
        success = self._info.get("success")
        if len(self._seats) == 1 and not isinstance(success, Mapping):
            return self._info
        by_seat: Mapping[str, Any] = success if isinstance(success, Mapping) else {}
        earned = sum(turn.reward for turn in self._seats[name].turns) > 0
        return {**self._info, "success": bool(by_seat.get(name, earned))}


def _turn(action: Action, observation: str, info: Info, seconds: float, *, number: int) -> Turn:
    """The turn as the agent made it; `info` came with the observation, so its key names the state before the action."""
    return Turn(
        prompt_ids=action.prompt_ids,
        sampled_ids=action.sampled_ids,
        logprobs=action.logprobs,
        policy=action.policy,
        policy_version=action.policy_version,
        restarts=action.restarts,
        call=call_row(number, observation, info) if MESSAGES in info else action.call,
        heard=action.heard,
        observation=observation,
        action=action.text,
        valid=action.stop is None,  # a cut turn is not an action: the environment never sees it
        state_key=info.get("state_key"),
        streams=action.streams,
        sample_seconds=seconds,
    )
