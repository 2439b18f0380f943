"""Handing out episodes: a lost player costs time, never an episode, and none counts twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from turnwise.cluster.troupe import LostError, Troupe
from turnwise.recipe.machines import ClusterChoice
from turnwise.rollout.episode import EpisodeSpec
from turnwise.rollout.scheduler import play_all
from turnwise.types import StopReason, Trajectory
from turnwise.waiting import finish

SPECS = [EpisodeSpec(env="some/env", seed=seed) for seed in range(24)]


class Player:
    """A player in this process that does as it is told."""

    def __init__(self, company: Company, number: int) -> None:
        self.company, self.number, self.version, self.alive = company, number, -1, True

    async def ready(self) -> str:
        self.company.started[self.number] += 1
        await asyncio.sleep(0)
        if self.company.fails_to_start:
            raise ValueError("the model does not load")
        return f"machine-{self.number}"

    async def update(self, news: Any) -> None:
        await asyncio.sleep(0)
        self.version = news

    async def play(
        self, spec: EpisodeSpec, temperature: float | None, alone: str | None
    ) -> tuple[list[Trajectory], float]:
        self.company.most = max(self.company.most, self.company.playing + 1)
        self.company.playing += 1
        try:
            await asyncio.sleep(0.002)
            if not self.alive or self.company.takes_down(self, spec):
                self.alive = False
                raise LostError("killed")
        finally:
            self.company.playing -= 1
        self.company.versions.add(self.version)
        return [Trajectory(id=spec.id, turns=[], stop=StopReason.DONE)], 1.0

    def kill(self) -> None:
        self.alive = False


class Company:
    """All players of a test."""

    def __init__(self, takes_down: Callable[[Player, EpisodeSpec], bool] = lambda player, spec: False) -> None:
        self.takes_down, self.started, self.versions = takes_down, Counter[int](), set[int]()
        self.playing = self.most = 0
        self.fails_to_start = False
        self.notes: list[str] = []
        self.machines = {"a"}

    def troupe(self, **choice: Any) -> Troupe:
        settings = ClusterChoice(**{"players": 3, "at_once": 2, **choice})
        return Troupe(
            settings, lambda number: Player(self, number), machines=lambda: self.machines, note=self.notes.append
        )


def play(troupe: Troupe, specs: list[EpisodeSpec] = SPECS) -> list[list[Trajectory]]:
    async def run() -> list[list[Trajectory]]:
        ends = play_all(specs, lambda spec: troupe.play(spec, None), at_once=16)
        finished = [episode async for episode in ends]
        return [trajectories for _, _, trajectories in sorted(finished, key=lambda end: end[0])]

    try:
        return finish(run())
    finally:
        troupe.close()
        assert not asyncio.all_tasks(troupe._loop), "work that was left half done"


def test_every_spec_is_played_once_and_no_player_has_more_than_its_share():
    company = Company()
    played = play(company.troupe())
    assert [each[0].id for each in played] == [spec.id for spec in SPECS]
    assert company.most <= 3 * 2


def test_the_episodes_of_a_lost_player_are_played_by_others_and_it_is_replaced():
    killed = set[int]()

    def once(player: Player, spec: EpisodeSpec) -> bool:
        first = player.number not in killed and spec.seed > 8
        killed.add(player.number) if first else None
        return first

    company = Company(once)
    played = play(company.troupe())
    assert [each[0].id for each in played] == [spec.id for spec in SPECS]
    assert all(each[0].stop is StopReason.DONE for each in played)
    assert len(killed) == 3
    assert sum("is lost: killed" in note for note in company.notes) == 3
    assert any("will be played again" in note for note in company.notes)
    assert sum(company.started.values()) >= 5  # the last may not have been needed


def test_an_episode_that_takes_every_player_down_fails_alone():
    company = Company(lambda player, spec: spec.seed == 5)
    played = play(company.troupe(at_once=1))
    stops = {spec.seed: each[0].stop for spec, each in zip(SPECS, played, strict=True)}
    assert stops.pop(5) is StopReason.ENV_ERROR
    assert set(stops.values()) == {StopReason.DONE}


def test_nobody_plays_with_old_weights_also_not_a_player_that_comes_later():
    lost = list[int]()

    def once(player: Player, spec: EpisodeSpec) -> bool:
        lost.append(player.number)
        return len(lost) == 1

    company = Company(once)
    troupe = company.troupe(players=1)
    troupe.update(7, lambda: 7)
    play(troupe)
    assert company.started[0] == 2
    assert company.versions == {7}


def test_too_many_losses_end_the_run_with_the_last_reason():
    with pytest.raises(ValueError, match=r"lost \(cluster.losses is 2\); the last: player \d on machine-\d is lost"):
        play(Company(lambda player, spec: True).troupe(losses=2))


def test_an_error_that_every_player_would_make_is_raised_as_it_is():
    company = Company()
    company.fails_to_start = True
    with pytest.raises(ValueError, match="the model does not load"):
        play(company.troupe())


def test_a_cluster_without_room_is_said_after_the_deadline():
    class Waiting(Player):
        async def ready(self) -> str:
            await asyncio.sleep(60)
            return ""

    company = Company()
    settings = ClusterChoice(players=1, gpus=2, start_seconds=0.2)
    troupe = Troupe(settings, lambda number: Waiting(company, number), machines=set, note=company.notes.append)
    with pytest.raises(ValueError, match="each needs 1 CPUs and 2 GPUs free on one machine"):
        play(troupe)


def test_an_episode_that_takes_too_long_costs_its_player():
    class Hanging(Player):
        async def play(
            self, spec: EpisodeSpec, temperature: float | None, alone: str | None
        ) -> tuple[list[Trajectory], float]:
            if self.company.started[self.number] == 1 and spec.seed == 3:
                await asyncio.sleep(600)
            return await super().play(spec, temperature, alone)

    company = Company()
    settings = ClusterChoice(players=2, at_once=1, episode_seconds=0.5)
    troupe = Troupe(settings, lambda number: Hanging(company, number), machines=set, note=company.notes.append)
    played = play(troupe)
    assert [each[0].id for each in played] == [spec.id for spec in SPECS]
    assert any("an episode took more than 0.5 s (cluster.episode_seconds)" in note for note in company.notes)
