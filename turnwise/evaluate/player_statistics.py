"""Players of one table compared: each pair by Welch's test on their rounds, corrected for the number of tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from turnwise.envs.cards.dhumbal_table import PlayerRecord
from turnwise.evaluate.statistics import bonferroni, cohens_d, welch_t

_FEWEST = 2  # values of which a variance can be taken


@dataclass(frozen=True, kw_only=True)
class PairTest:
    """One metric of two players: the difference of their means, and whether chance explains it."""

    metric: str
    first: str
    second: str
    difference: float
    p: float
    """Bonferroni: times the number of pairs of this metric, at most 1."""
    d: float
    """Cohen's d, in pooled standard deviations."""


def compare_players(records: Mapping[str, PlayerRecord]) -> list[PairTest]:
    """All pairs of players, metric by metric; a pair with too few values, such as no calls, is left out."""
    samples = {player: _samples(record) for player, record in records.items()}
    metrics = dict.fromkeys(metric for of_player in samples.values() for metric in of_player)
    return [test for metric in metrics for test in _pairs_of(metric, samples)]


def _samples(record: PlayerRecord) -> dict[str, list[float]]:
    """The values of each metric that a mean is taken of."""
    spent = zip(record.seconds, record.decisions, strict=True)
    return {
        "win_rate": [float(won) for won in record.won],
        "coins": [float(coins) for coins in record.coins],
        "discarded": [float(cards) for cards in record.discarded],
        "decision_ms": [1000 * seconds / decisions for seconds, decisions in spent if decisions],
        "call_success": [float(call.won) for call in record.made_calls],
    }


def _pairs_of(metric: str, samples: Mapping[str, Mapping[str, list[float]]]) -> list[PairTest]:
    able = [player for player, found in samples.items() if len(found[metric]) >= _FEWEST]
    pairs = [
        (first, second, samples[first][metric], samples[second][metric]) for first, second in combinations(able, 2)
    ]
    p_values = bonferroni([welch_t(one, other).p for _, _, one, other in pairs])
    return [
        PairTest(
            metric=metric,
            first=first,
            second=second,
            difference=sum(one) / len(one) - sum(other) / len(other),
            p=p,
            d=cohens_d(one, other),
        )
        for (first, second, one, other), p in zip(pairs, p_values, strict=True)
    ]
