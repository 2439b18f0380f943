"""A round robin of agents on a game of several seats: who meets whom, what they earn, and their ratings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from statistics import fmean
from typing import Any

from turnwise.envs.faults import close_quietly
from turnwise.envs.process import EnvSource
from turnwise.evaluate.ratings import Rating, Result, rate
from turnwise.rollout.agents import Agent
from turnwise.rollout.episode import EpisodeSpec
from turnwise.types import CUTS, Group, StopReason, Trajectory

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
    forfeits: int
    """Games that it lost because a limit cut its turn."""


@dataclass(frozen=True, kw_only=True)
class Tournament:
    """What came of it: standings, the best first, and the games of every pair."""

    env: str
    stakes: bool
    """Whether games counted by how much was won."""
    games: int
    """Games with a result: played to their end, or lost by the player whose turn a limit cut."""
    unfinished: dict[str, int]
    """Games that a limit ended without a result, by its name; they do not count."""
    faults: int
    """Episodes that failed and do not count."""
    last_error: str
    standings: list[Placing]
    unrated: list[str]
    """Players without a game that counts."""
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
                "forfeits": each.forfeits,
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
    tally = _Tally()
    for table, episodes in tables.items():
        player_of = dict(zip(seats, table, strict=True))
        for episode in episodes:
            tally.count(episode, player_of)
    results = _results(tally.margins, stakes=stakes)
    standings = [tally.placing(rating) for rating in rate(results)]
    everybody = {player for table in tables for player in table}
    return Tournament(
        env=env,
        stakes=stakes,
        games=tally.games,
        unfinished=dict(tally.unfinished),
        faults=tally.faults,
        last_error=tally.last_error,
        standings=standings,
        unrated=sorted(everybody - {each.rating.player for each in standings}),
        results=results,
    )


@dataclass(kw_only=True)
class _Tally:
    """What the games have come to so far, by player."""

    games: int = 0
    unfinished: Counter[str] = field(default_factory=Counter[str])
    faults: int = 0
    last_error: str = ""
    earned: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    valid: defaultdict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    forfeits: Counter[str] = field(default_factory=Counter[str])
    margins: defaultdict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    """How much more the first of two players earned in each of their games."""

    def count(self, episode: Sequence[Trajectory], player_of: Mapping[str, str]) -> None:
        """Count one game, whatever came of it."""
        stop, info = episode[0].stop, episode[0].info
        if len(episode) < len(player_of) or any(each.stop.is_failure for each in episode):
            self.faults, self.last_error = self.faults + 1, str(info.get("error", self.last_error))
            return
        price = _price_of_cut(stop, info)
        if stop in CUTS and price is None:
            self.unfinished[stop.value] += 1
            return
        self.games += 1
        rewards = {player_of[each.seat]: each.reward if each.turns else each.last_pay for each in episode}
        for each in episode:
            player = player_of[each.seat]
            self.earned[player].append(rewards[player])
            self.valid[player] += [turn.valid for turn in each.turns]
        if price is None:
            for one, other in combinations(sorted(rewards), 2):
                self.margins[one, other].append(rewards[one] - rewards[other])
        else:
            self._forfeit(player_of[info["seat"]], rewards, price)

    def _forfeit(self, loser: str, rewards: Mapping[str, float], price: float) -> None:
        """One lost to all others, though it may have led; between those nothing was decided."""
        self.forfeits[loser] += 1
        for winner in sorted(rewards.keys() - {loser}):
            lead = max(rewards[winner] - rewards[loser], price)
            pair, margin = ((winner, loser), lead) if winner < loser else ((loser, winner), -lead)
            self.margins[pair].append(margin)

    def placing(self, rating: Rating) -> Placing:
        """The row of a player."""
        valid = self.valid[rating.player]
        return Placing(
            rating=rating,
            reward=fmean(self.earned[rating.player]),
            valid=fmean(valid) if valid else None,
            forfeits=self.forfeits[rating.player],
        )


def _price_of_cut(stop: StopReason, info: Mapping[str, Any]) -> float | None:
    """What a player loses with a turn that a limit cut; None if none was cut, or the game has no rule for it.

    That seats run out of turns is nobody's fault.
    """
    price = -float(info.get("cut_reward", 0.0))
    return price if stop in (StopReason.MAX_TOKENS, StopReason.CONTEXT_FULL) and price > 0 else None


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
