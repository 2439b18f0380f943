"""Hands episodes out to players elsewhere. Nothing is lost with a player: its episodes go to another.

An episode's result depends on its spec and the policy, not on who plays it, so playing one twice does no harm: exactly
one result is used.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from turnwise.envs.faults import EpisodeError
from turnwise.envs.workers import Host
from turnwise.recipe.machines import ClusterChoice
from turnwise.rollout.agents import RandomAgent
from turnwise.rollout.episode import Episode, EpisodeSpec, Limits
from turnwise.types import Trajectory
from turnwise.words import counted

Value = TypeVar("Value")
_TRIES = 4
"""Players that one episode may take down before it counts as failed: the fault may be its own."""
_WATCH_SECONDS = 2.0
_CLOSE_SECONDS = 30.0


class LostError(Exception):
    """The player is gone, or may be."""


class FarPlayer(Protocol):
    """A player elsewhere. Every method raises LostError when the player is gone."""

    async def ready(self) -> str:
        """Wait until it can play; returns the machine it is on."""
        ...

    async def update(self, news: Any) -> None:
        """Take over new weights."""
        ...

    async def play(
        self, spec: EpisodeSpec, temperature: float | None, alone: str | None
    ) -> tuple[list[Trajectory], float]:
        """Play an episode; also returns how long its engines have run so far."""
        ...

    def kill(self) -> None:
        """End it now."""
        ...


@dataclass(eq=False, kw_only=True)
class _Member:
    name: str
    player: FarPlayer
    playing: int = 0
    busy_seconds: float = 0.0
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    reason: str = ""

    def lose(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.lost.set()


class Troupe:
    """The players of a run: `await troupe.play(spec, temperature)` from any event loop.

    It lives in a thread, so that players are watched and replaced while the learner learns. `start(number)` begins a
    player; `machines()` names the machines that are up; `note` gets a line for all that comes and goes.
    """

    def __init__(
        self,
        choice: ClusterChoice,
        start: Callable[[int], FarPlayer],
        *,
        machines: Callable[[], set[str]],
        note: Callable[[str], None],
    ) -> None:
        self._choice, self._start, self._machines, self._note = choice, start, machines, note
        self._members: list[_Member] = []
        self._news: Callable[[], Any] | None = None
        self._last_seen, self._last_reason = time.monotonic(), ""
        self._past_seconds = 0.0
        self._losses = 0
        self._failure: Exception | None = None
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="turnwise-cluster", daemon=True)
        self._thread.start()
        for task in (*(self._keep(number) for number in range(choice.players)), self._watch()):
            self._post(task)

    @property
    def busy_seconds(self) -> float:
        """Time that the players' engines have spent running their models."""
        return self._past_seconds + sum(member.busy_seconds for member in list(self._members))

    async def play(self, spec: EpisodeSpec, temperature: float | None, alone: str | None = None) -> list[Trajectory]:
        """Play one episode on whichever player is free; if it is lost, on another."""
        return await asyncio.wrap_future(self._post(self._play(spec, temperature, alone)))

    def update(self, fresh: Any, whole: Callable[[], Any]) -> None:
        """Give `fresh` to all players and wait for them; a player that comes later gets `whole()`."""
        self._post(self._update(fresh, whole)).result()

    def close(self) -> None:
        """End all players."""
        with suppress(Exception):  # the players end with the process at the latest
            self._post(self._finish()).result(timeout=_CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=_CLOSE_SECONDS)

    def _post(self, work: Coroutine[Any, Any, Value]) -> Future[Value]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _finish(self) -> None:
        for member in self._members:
            member.player.kill()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)  # a loop that stops would leave them half done

    # Members: every place is held by one player after another.

    async def _keep(self, number: int) -> None:
        while self._losses <= self._choice.losses:
            player = self._start(number)
            try:
                await self._serve(number, player)
            except LostError as error:
                self._lost(f"player {number} did not start: {error}")
            except Exception as error:  # the edge of the thread: whoever wants to play raises it
                self._failure = error
                self._notify()
                return
            finally:
                player.kill()

    async def _serve(self, number: int, player: FarPlayer) -> None:
        """Bring a player up to date, then let it play until it is lost."""
        machine = await player.ready()
        seen = None
        while self._news is not seen and (seen := self._news) is not None:
            await player.update(seen())
        member = _Member(name=f"player {number} on {machine}", player=player)
        self._members.append(member)
        self._note(f"{member.name} is here")
        self._notify()
        try:
            await member.lost.wait()
        finally:
            self._members.remove(member)
            self._past_seconds += member.busy_seconds
            self._last_seen = time.monotonic()
        again = f"; {counted(member.playing, 'episode')} will be played again" if member.playing else ""
        self._lost(f"{member.name} is lost: {member.reason}{again}")

    def _lost(self, text: str) -> None:
        self._losses += 1
        self._last_reason = text
        self._note(text)
        self._notify()

    def _notify(self) -> None:
        """Wake all who wait for a change. The thread is one, so no lock is needed, and none is left half taken."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self) -> None:
        """Name the machines that come and go."""
        known = await asyncio.to_thread(self._machines)
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            now = await asyncio.to_thread(self._machines)
            for machine in sorted(now - known):
                self._note(f"machine {machine} has joined")
            for machine in sorted(known - now):
                self._note(f"machine {machine} is gone")
            known = now

    # Work.

    async def _update(self, fresh: Any, whole: Callable[[], Any]) -> None:
        self._news = whole
        await asyncio.gather(*(self._guarded(member, member.player.update(fresh)) for member in list(self._members)))

    async def _guarded(self, member: _Member, work: Awaitable[None]) -> None:
        try:
            await asyncio.wait_for(work, self._choice.episode_seconds)
        except (LostError, TimeoutError) as error:
            member.lose(str(error) or "it did not take the new weights in time")

    async def _play(self, spec: EpisodeSpec, temperature: float | None, alone: str | None) -> list[Trajectory]:
        for _ in range(_TRIES):
            member = await self._free_member()
            try:
                work = member.player.play(spec, temperature, alone)
                trajectories, member.busy_seconds = await asyncio.wait_for(work, self._choice.episode_seconds)
                return trajectories
            except LostError as error:
                member.lose(str(error))
            except TimeoutError:
                member.lose(f"an episode took more than {self._choice.episode_seconds:g} s (cluster.episode_seconds)")
            finally:
                member.playing -= 1
                self._notify()
        return await _failed(spec)

    async def _free_member(self) -> _Member:
        """The member with the least to do, once one has room."""
        while True:
            there = [member for member in self._members if not member.lost.is_set()]
            free = [member for member in there if member.playing < self._choice.at_once]
            if free:
                chosen = min(free, key=lambda member: member.playing)
                chosen.playing += 1
                return chosen
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._changed.wait()
            if not self._members:
                self._require_hope()

    def _require_hope(self) -> None:
        """Raise if no player is there and none can be expected."""
        choice = self._choice
        if self._failure is not None:
            raise self._failure
        if self._losses > choice.losses:
            raise ValueError(
                f"{counted(self._losses, 'player')} of the cluster were lost (cluster.losses is {choice.losses}); "
                f"the last: {self._last_reason}"
            )
        if time.monotonic() - self._last_seen > choice.start_seconds:
            raise ValueError(
                f"no player of the cluster was there for {choice.start_seconds:g} s: each needs {choice.cpus:g} CPUs "
                f"and {choice.gpus:g} GPUs free on one machine; lower cluster.cpus or cluster.gpus, or add machines"
                + (f" ({self._last_reason})" if self._last_reason else "")
            )


async def _failed(spec: EpisodeSpec) -> list[Trajectory]:
    """An episode that takes every player down is a fault of its environment."""

    async def fail() -> Host:
        raise EpisodeError(f"{_TRIES} players of the cluster were lost while they played it")

    return await Episode(spec, RandomAgent(), Limits(), seed=0).play(fail)
