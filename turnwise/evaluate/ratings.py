"""Ratings from who beat whom: Bradley and Terry's model (1952) on Elo's scale, with intervals."""

from __future__ import annotations

from collections.abc import Iterable
from math import log
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from turnwise.evaluate.statistics import Interval

MEAN = 1500.0
"""The mean rating of all players."""
SCALE = 400 / log(10)
"""Elo's points for a factor of e in the odds: 400 points are odds of ten to one."""
_PRIOR = 1.0
"""Drawn games of each player against one of mean strength. They keep the rating of one who never lost finite."""
_ROUNDS, _CLOSE = 200, 1e-10


class Result(NamedTuple):
    """Games between two players: `Result("a", "b", won=3, drawn=1, lost=0)`, as `a` sees them."""

    player: str
    other: str
    won: float = 0
    drawn: float = 0
    lost: float = 0

    @property
    def games(self) -> float:
        """All of them."""
        return self.won + self.drawn + self.lost


class Rating(NamedTuple):
    """A player's rating with its 95% interval, and the games and the share of points that it comes from."""

    player: str
    value: float
    interval: Interval
    games: float
    score: float


def rate(results: Iterable[Result], *, confidence: float = 0.95) -> list[Rating]:
    """Everybody's rating, the best first; draws count half.

        P(a beats b) = 1 / (1 + 10^((R_b − R_a) / 400))

    Ratings maximise the likelihood of the results and of one drawn game of each player against a mean one. Intervals
    come from the information matrix; they are about the distance from the mean of all players.
    """
    played = [result for result in results if result.player != result.other and result.games > 0]
    names = sorted({name for result in played for name in (result.player, result.other)})
    if not names:
        return []
    games, points = _tables(played, names)
    strengths, information = _fit(games, points)
    centred = np.eye(len(names)) - 1 / len(names)
    errors = np.sqrt(np.clip(np.diag(centred @ np.linalg.inv(information) @ centred), 0, None))
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rated: list[Rating] = []
    for place, name in enumerate(names):
        value, half = MEAN + SCALE * (strengths[place] - strengths.mean()), z * SCALE * errors[place]
        count = games[place].sum()
        interval = Interval(float(value - half), float(value + half))
        rated.append(Rating(name, float(value), interval, float(count), float(points[place].sum() / count)))
    return sorted(rated, key=lambda rating: (-rating.value, rating.player))


def _tables(results: Iterable[Result], names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Games of each pair, and the points of the row's player in them."""
    games, points = np.zeros((2, len(names), len(names)))
    for result in results:
        one, other = names.index(result.player), names.index(result.other)
        games[one, other] += result.games
        games[other, one] += result.games
        points[one, other] += result.won + result.drawn / 2
        points[other, one] += result.lost + result.drawn / 2
    return games, points


def _fit(games: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The strengths by Newton's method, and the information matrix there."""
    strengths, scored = np.zeros(len(games)), points.sum(axis=1) + _PRIOR / 2
    for _ in range(_ROUNDS):
        expected, information = _expect(games, strengths)
        step = np.linalg.solve(information, scored - expected)
        strengths = strengths + step / max(1.0, float(np.abs(step).max()))  # the model is concave, but not quadratic
        if float(np.abs(step).max()) < _CLOSE:
            break
    return strengths, _expect(games, strengths)[1]


def _expect(games: np.ndarray, strengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points that players of these strengths expect, and the information in their games."""
    chances, against_mean = _logistic(strengths[:, None] - strengths[None, :]), _logistic(strengths)
    slopes = games * chances * (1 - chances)
    information = np.diag(slopes.sum(axis=1) + _PRIOR * against_mean * (1 - against_mean)) - slopes
    return (games * chances).sum(axis=1) + _PRIOR * against_mean, information


def _logistic(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))
