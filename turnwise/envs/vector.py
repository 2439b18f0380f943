"""Many environments for users with their own loop: partial stepping, and autoreset that loses nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, TypeVar

from turnwise.envs.base import Env, Info, Reset, Step
from turnwise.envs.faults import EpisodeError
from turnwise.envs.process import EnvSource
from turnwise.envs.workers import Execution, Host, Workers

Autoreset = Literal["same_step", "next_step", "off"]
AUTORESET: tuple[Autoreset, ...] = ("same_step", "next_step", "off")
_CLOSE_SECONDS = 10.0
Value = TypeVar("Value")


class VectorStep(NamedTuple):
    """What `step` returns: five lists in the order of the actions."""

    observations: list[str]
    rewards: list[float]
    terminated: list[bool]
    truncated: list[bool]
    infos: list[Info]


@dataclass(kw_only=True)
class _Place:
    """One of the environments, and its state."""

    source: EnvSource
    workers: Workers
    first_seed: int
    stride: int
    autoreset: Autoreset
    step_seconds: float
    reset_seconds: float
    host: Host | None = None
    episode: int = -1
    ended: Reset | None = None
    """The last observation and info of an episode that has ended but was not yet followed by another."""

    @property
    def seed(self) -> int:
        return self.first_seed + self.episode * self.stride

    async def reset(self) -> Reset:
        self.episode += 1
        ended, self.ended = self.ended, None
        try:
            host = self.host or await self.open()
            observation, info = await host.reset(self.seed, None, deadline=self.reset_seconds)
        except EpisodeError as error:
            observation, info = self.ended = await self._fail(error)
        if ended is not None:
            info = {**info, "final_observation": ended[0], "final_info": ended[1]}
        return observation, info

    async def step(self, action: str) -> Step:
        if self.ended is not None:  # the step after the end: it resets, whatever the action
            observation, info = await self.reset()
            return observation, 0.0, False, self.ended is not None, info
        assert self.host is not None
        try:
            observation, reward, terminated, truncated, info = await self.host.step(action, deadline=self.step_seconds)
        except EpisodeError as error:
            observation, info = await self._fail(error)
            reward, terminated, truncated = 0.0, False, True
        truncated = truncated and not terminated
        if terminated or truncated:
            self.ended = observation, info
            if self.autoreset == "same_step":
                observation, info = await self.reset()
        return observation, reward, terminated, truncated, info

    async def _fail(self, error: EpisodeError) -> Reset:
        with suppress(EpisodeError):  # the first error is the one to show
            await self.leave()
        return "", {"error": str(error), "traceback": error.trace}

    async def open(self) -> Host:
        """Build the environment; raises EpisodeError."""
        self.host = await self.workers.open(self.source, deadline=self.reset_seconds)
        return self.host

    async def leave(self) -> None:
        host, self.host = self.host, None
        if host is not None:
            await host.close(deadline=_CLOSE_SECONDS)


def make_vec(
    env: str | Callable[..., Env] | Sequence[str | Callable[..., Env]],
    count: int | None = None,
    *,
    seed: int = 0,
    kwargs: Mapping[str, Any] | None = None,
    autoreset: Autoreset = "same_step",
    step_seconds: float = 60.0,
    reset_seconds: float = 120.0,
    processes: int | None = None,
    execution: Execution | None = None,
) -> VectorEnv:
    """Several environments: `make_vec("game/hanoi-easy", 8)` or `make_vec(["game/hanoi-easy", "game/sudoku-easy"])`."""
    if isinstance(env, str) or callable(env):
        chosen = [env] * (1 if count is None else count)
    elif count is None:
        chosen = list(env)
    else:
        raise ValueError("a count needs a single environment; repeat the entries of a list instead: [a, b] * count")
    if not chosen:
        raise ValueError("make_vec needs at least one environment; pass an id and a count, or a list of ids")
    if autoreset not in AUTORESET:
        raise ValueError(f"unknown autoreset {autoreset!r}; choose one of {', '.join(AUTORESET)}")
    workers = Workers(processes=processes or len(chosen), execution=execution)
    places = [
        _Place(
            source=EnvSource(env=each, kwargs=kwargs or {}),
            workers=workers,
            first_seed=seed + index,
            stride=len(chosen),
            autoreset=autoreset,
            step_seconds=step_seconds,
            reset_seconds=reset_seconds,
        )
        for index, each in enumerate(chosen)
    ]
    return VectorEnv(places, workers)


class VectorEnv:
    r"""Environments side by side. Any subset can be stepped, and a failing one affects no other.

    Environment `i` plays its episode `k` with seed `seed + i + k * count`. With `autoreset="same_step"` the step that
    ends an episode returns the next one's first observation, with `"next_step"` the step after it (its action is
    ignored). Either way `info["final_observation"]` and `info["final_info"]` say how the last one ended. A crashed or
    hung environment is replaced: its step is truncated, and the last info of that episode has the text in `error`,
    with the stack trace in `traceback`.

        with make_vec("game/hanoi-easy", 8) as envs:
            observations, infos = envs.reset()
            observations, rewards, terminated, truncated, infos = envs.step({0: r"\boxed{C B}", 5: r"\boxed{B C}"})
    """

    def __init__(self, places: Sequence[_Place], workers: Workers) -> None:
        self._places, self._workers = places, workers
        self._pending: dict[int, Future[Step]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="turnwise-vector", daemon=True)
        self._thread.start()
        try:
            self._build_one_of_each()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._places)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def seed_of(self, index: int) -> int:
        """The seed of the episode that environment `index` plays now."""
        return self._places[index].seed

    def reset(self, indices: Iterable[int] | None = None) -> tuple[list[str], list[Info]]:
        """Start a new episode in all environments, or in those given."""
        chosen = self._free(range(len(self)) if indices is None else indices)
        answers = [self._submit(self._places[index].reset()) for index in chosen]
        resets = [answer.result() for answer in answers]
        return [observation for observation, _ in resets], [info for _, info in resets]

    def step(self, actions: Sequence[str] | Mapping[int, str]) -> VectorStep:
        """One step of every environment (a list of actions) or of some (`{index: action}`); waits only for these."""
        self.send(actions)
        chosen = list(actions) if isinstance(actions, Mapping) else range(len(self))
        steps = [self._pending.pop(index).result() for index in chosen]
        return VectorStep(*map(list, zip(*steps, strict=True))) if steps else VectorStep([], [], [], [], [])

    def send(self, actions: Sequence[str] | Mapping[int, str]) -> None:
        """Start steps without waiting; `recv` collects them."""
        if not isinstance(actions, Mapping):
            if isinstance(actions, str) or len(actions) != len(self):
                raise ValueError(
                    f"step needs one action for each of the {len(self)} environments, or {{index: action}}"
                )
            actions = dict(enumerate(actions))
        for index in self._free(actions):
            self._check_begun(index)
            if not isinstance(actions[index], str):
                raise ValueError(f"an action is a string, but that of environment {index} is {actions[index]!r}")
        for index, action in actions.items():
            self._pending[index] = self._submit(self._places[index].step(action))

    def recv(self, *, timeout: float | None = None) -> dict[int, Step]:
        """The finished steps by index. Waits for the first one, at most `timeout` seconds (0: not at all)."""
        wait(self._pending.values(), timeout=timeout, return_when=FIRST_COMPLETED)
        finished = [index for index, answer in self._pending.items() if answer.done()]
        return {index: self._pending.pop(index).result() for index in finished}

    def close(self) -> None:
        """Close everything. Safe to call twice."""
        if self._loop.is_closed():
            return
        for answer in self._pending.values():
            answer.cancel()
        for answer in [self._submit(place.leave()) for place in self._places]:
            with suppress(EpisodeError):  # nobody is left to tell
                answer.result()
        self._workers.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _build_one_of_each(self) -> None:
        """Failing to build is the caller's mistake, so raise now and not at some later reset."""
        for place in {place.source.env: place for place in reversed(self._places)}.values():
            place.source.check()
            try:
                self._submit(place.open()).result()
            except EpisodeError as error:
                raise ValueError(f"cannot build {place.source.name}: {error}") from error

    def _submit(self, coroutine: Coroutine[Any, Any, Value]) -> Future[Value]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _free(self, indices: Iterable[int]) -> list[int]:
        if self._loop.is_closed():
            raise ValueError("these environments are closed; make new ones with make_vec")
        chosen = list(indices)
        for index in chosen:
            if not 0 <= index < len(self):
                raise ValueError(f"there is no environment {index}; indices go from 0 to {len(self) - 1}")
            if index in self._pending:
                raise ValueError(f"environment {index} is still stepping; collect it with recv() first")
        return chosen

    def _check_begun(self, index: int) -> None:
        place = self._places[index]
        if place.episode < 0 or (place.ended is not None and place.autoreset == "off"):
            raise ValueError(f"environment {index} has no episode to step in; start one with reset([{index}])")
