"""One player of a cluster: a whole player in another process, which gets specs and weights."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from turnwise.cluster.parcels import News, Parcels
from turnwise.rollout.episode import EpisodeSpec
from turnwise.sources.cast import Cast, Voice
from turnwise.sources.player import Player
from turnwise.types import Trajectory

Build = Callable[[Mapping[str, Any]], tuple[Cast, Player]]
"""Makes the cast and the player of a recipe that is given as plain values."""


class PlayerActor:
    """What runs inside a Ray actor. It knows nothing of Ray."""

    def __init__(self, build: Build, recipe: Mapping[str, Any]) -> None:
        # Loading waits for `ready`: an error there reaches the caller as it is, and one here would not.
        self._load = partial(build, recipe)

    async def ready(self) -> str:
        """Load the models; returns the machine it is on."""
        self._cast, self._player = await asyncio.to_thread(self._load)
        self._scheduler = self._player.make_scheduler()
        self._voices = {voice.name: voice for voice in self._cast.voices}
        return platform.node()

    async def update(self, news: News) -> None:
        """Take over weights and the members of pools; what is being sampled goes on with them."""
        waited = {name: voice.parcels for name, voice in news.voices.items()}
        arrived = {name: None if parcels is None else await parcels for name, parcels in waited.items()}
        await asyncio.to_thread(self._take, news, arrived)

    async def play(
        self, spec: EpisodeSpec, temperature: float | None, alone: str | None
    ) -> tuple[list[Trajectory], float]:
        """Play one episode among others."""
        trajectories = await self._scheduler.play_one(spec, self._player.agents(temperature, alone))
        return trajectories, self._player.busy_seconds

    def _take(self, news: News, arrived: Mapping[str, Parcels | None]) -> None:
        replaced: list[Voice] = []
        with self._player.paused():
            for name, parcels in arrived.items():
                voice = self._voices[name]
                if parcels is not None:
                    voice.policy.model.load_state_dict({key: parcel.open() for key, parcel in parcels.items()})
                voice.label, voice.version = news.voices[name].label, news.voices[name].version
                replaced += [] if voice.learns else [voice]
        for seat, held in news.pools.items():
            pool = self._cast.pools[seat]
            pool.held = {step: self._voices[name] for step, name in held.items()}
            pool.weights = dict(news.weights[seat])
        self._player.publish(news.version)
        self._player.replaced(replaced)
        self._player.follow(news.standings)
