"""A round robin of agents on a game of several seats: who meets whom, what they earn, and their ratings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

from turnwise.envs.faults import close_quietly
from turnwise.envs.process import EnvSource
from turnwise.evaluate.ratings import Rating, Result, rate
from turnwise.rollout.agents import Agent
from turnwise.rollout.episode import EpisodeSpec
from turnwise.types import Group, Trajectory

Play = Callable[[Sequence[EpisodeSpec], Mapping[str, Agent]], list[Group]]
"""Plays episodes with an agent at each seat."""


@dataclass(frozen=True, kw_only=True)
class Placing:
    """One player's row of the table."""

    rating: Rating
    reward: float
    """Mean over its games."""
    valid: float | None
    """The share of its turns that were legal; None without a turn."""


@dataclass(frozen=True, kw_only=True)
class Tournament:
    """What came of it: standings, the best first, and the games of every pair."""

    env: str
    stakes: bool
    """Whether games counted by how much was won."""
    games: int
    """Episodes that were played to their end."""
    faults: int
    """Episodes that failed and do not count."""
    last_error: str
    standings: list[Placing]
    results: list[Result]

    def as_row(self) -> dict[str, Any]:
        """As plain data."""
        standings = [
            {
                "player": each.rating.player,
                "rating": each.rating.value,
                "low": each.rating.interval.low,
                "high": each.rating.interval.high,
                "games": each.rating.games,
                "score": each.rating.score,
                "reward": each.reward,
                "valid": each.valid,
            }
            for each in self.standings
        ]
        rest = {key: value for key, value in asdict(self).items() if key not in ("standings", "results")}
        return {**rest, "standings": standings, "results": [result._asdict() for result in self.results]}


def play_tournament(
    source: EnvSource, agents: Mapping[str, Agent], play: Play, *, games: int, stakes: bool = False
) -> Tournament:
    """Let all meet all: every table plays the same `games` seeds in every rotation of its players.

    With `stakes` a game counts by how much was won: the largest difference of rewards between two players is a whole
    game, and of one with half that difference one half is won and one half drawn.
    """
    seats = _seats_of(source)
    if len(agents) < len(seats):
        raise ValueError(
            f"{source.name} has {len(seats)} seats, but there are {len(agents)} players; name more with --player, "
            "the same agent under several names if you like"
        )
    tables: dict[tuple[str, ...], list[list[Trajectory]]] = {}
    for table in rotations(sorted(agents), len(seats)):
        seated = {seat: agents[player] for seat, player in zip(seats, table, strict=True)}
        name = "-".join(table)
        specs = [EpisodeSpec.of(source, seed=seed, group=f"{name}:{seed}") for seed in range(games)]
        tables[table] = list(_by_episode(play(specs, seated)))
    return _sum_up(source.name, seats, tables, stakes=stakes)


def rotations(players: Sequence[str], seats: int) -> Iterator[tuple[str, ...]]:
    """Every choice of players for a table, with each of them once at every seat."""
    for chosen in combinations(players, seats):
        for turn in range(seats):
            yield chosen[turn:] + chosen[:turn]


def _seats_of(source: EnvSource) -> tuple[str, ...]:
    env = source.build()
    try:
        seats = tuple(env.seats)
    finally:
        close_quietly(env)
    if len(seats) < 2:
        raise ValueError(f"{source.name} has one seat, so nobody can meet; `turnwise eval` plays it")
    return seats


def _by_episode(groups: Sequence[Group]) -> Iterator[list[Trajectory]]:
    episodes: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for group in groups:
        for trajectory in group.trajectories:
            episodes[trajectory.episode].append(trajectory)
    yield from episodes.values()


def _sum_up(
    env: str, seats: Sequence[str], tables: Mapping[tuple[str, ...], list[list[Trajectory]]], *, stakes: bool
) -> Tournament:
    earned, turns = defaultdict[str, list[float]](list), defaultdict[str, list[bool]](list)
    margins = defaultdict[tuple[str, str], list[float]](list)
    faults, last_error, whole = 0, "", 0
    for table, episodes in tables.items():
        player_of = dict(zip(seats, table, strict=True))
        for episode in episodes:
            if len(episode) < len(seats) or any(each.stop.is_failure for each in episode):
                faults, last_error = faults + 1, str(episode[0].info.get("error", last_error))
                continue
            whole += 1
            rewards = {player_of[each.seat]: each.reward if each.turns else each.last_pay for each in episode}
            for each in episode:
                earned[player_of[each.seat]].append(rewards[player_of[each.seat]])
                turns[player_of[each.seat]] += [turn.valid for turn in each.turns]
            for one, other in combinations(sorted(rewards), 2):
                margins[one, other].append(rewards[one] - rewards[other])
    results = _results(margins, stakes=stakes)
    standings = [
        Placing(
            rating=rating,
            reward=fmean(earned[rating.player]),
            valid=fmean(turns[rating.player]) if turns[rating.player] else None,
        )
        for rating in rate(results)
    ]
    return Tournament(
        env=env,
        stakes=stakes,
        games=whole,
        faults=faults,
        last_error=last_error,
        standings=standings,
        results=results,
    )


def _results(margins: Mapping[tuple[str, str], Sequence[float]], *, stakes: bool) -> list[Result]:
    """The games of every pair; with `stakes` the part of a game that was not at stake is drawn."""
    largest = max((abs(margin) for each in margins.values() for margin in each), default=0.0)
    results: list[Result] = []
    for (one, other), each in margins.items():
        shares = [abs(margin) / largest if stakes and largest else float(margin != 0) for margin in each]
        won = sum(share for share, margin in zip(shares, each, strict=True) if margin > 0)
        lost = sum(share for share, margin in zip(shares, each, strict=True) if margin < 0)
        results.append(Result(one, other, won=won, drawn=len(each) - won - lost, lost=lost))
    return results
