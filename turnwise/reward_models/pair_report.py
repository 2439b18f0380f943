"""How good a reward model is on held-out pairs: accuracy, calibration, and whether it likes length."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from turnwise.evaluate.statistics import wilson_interval
from turnwise.ops.filters import merit
from turnwise.types import Group

BINS = 5
"""Bins of confidence from one half to one."""


@dataclass(frozen=True, kw_only=True)
class ScoredPair:
    """Two answers to one prompt with their scores and lengths in tokens."""

    chosen: float
    rejected: float
    chosen_length: int
    rejected_length: int
    source: str = ""

    @property
    def margin(self) -> float:
        return self.chosen - self.rejected

    @property
    def longer(self) -> int:
        """By how many tokens the chosen answer is longer."""
        return self.chosen_length - self.rejected_length

    @property
    def hit(self) -> float:
        """1 if the chosen answer scores higher, ½ for a tie."""
        return 0.5 if self.margin == 0 else float(self.margin > 0)


def scored_pairs(
    groups: Iterable[Group], scores: Sequence[Sequence[float]], sources: Sequence[str]
) -> list[ScoredPair]:
    """All pairs of each group whose merits differ; `scores` and `sources` are by group."""
    pairs: list[ScoredPair] = []
    for group, values, source in zip(groups, scores, sources, strict=True):
        ranked = sorted(zip(group.trajectories, values, strict=True), key=lambda each: -merit(each[0]))
        for (chosen, high), (rejected, low) in combinations(ranked, 2):
            if merit(chosen) > merit(rejected):
                lengths = [sum(len(turn.sampled_ids) for turn in each.turns) for each in (chosen, rejected)]
                pairs.append(
                    ScoredPair(
                        chosen=high,
                        rejected=low,
                        chosen_length=lengths[0],
                        rejected_length=lengths[1],
                        source=source,
                    )
                )
    return pairs


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of some pairs with its 95% interval; None if there are no pairs."""

    pairs: int
    accuracy: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, pairs: Sequence[ScoredPair]) -> Share:
        if not pairs:
            return cls(pairs=0)
        rate = sum(pair.hit for pair in pairs) / len(pairs)
        low, high = wilson_interval(rate=float(rate), trials=len(pairs))
        return cls(pairs=len(pairs), accuracy=rate, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Pairs about which the model is similarly sure: how sure, and how often it is right."""

    above: float
    below: float
    pairs: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class PairReport:
    """What held-out pairs say about a reward model."""

    all: Share
    margin: float
    """Mean score of the chosen answer minus that of the rejected one."""
    loss: float
    """Mean −log σ(margin): log 2 for a model that knows nothing."""
    calibration_error: float
    """Expected distance between the model's confidence in its choice and how often that choice is right."""
    reliability: list[Reliability]
    length_correlation: float | None
    """Correlation of the difference in score with the difference in length, each pair counted both ways round."""
    longer_chosen: Share
    longer_rejected: Share
    by_source: dict[str, Share] = field(default_factory=dict[str, Share])

    @classmethod
    def of(cls, pairs: Sequence[ScoredPair]) -> PairReport:
        """The report on at least one pair."""
        table = _reliability(pairs)
        sources = sorted({pair.source for pair in pairs} - {""})
        return cls(
            all=Share.of(pairs),
            margin=sum(pair.margin for pair in pairs) / len(pairs),
            loss=sum(_softplus(-pair.margin) for pair in pairs) / len(pairs),
            calibration_error=sum(row.pairs * abs(row.confidence - row.accuracy) for row in table) / len(pairs),
            reliability=table,
            length_correlation=_correlation([(pair.margin, float(pair.longer)) for pair in pairs]),
            longer_chosen=Share.of([pair for pair in pairs if pair.longer > 0]),
            longer_rejected=Share.of([pair for pair in pairs if pair.longer < 0]),
            by_source={name: Share.of([pair for pair in pairs if pair.source == name]) for name in sources},
        )

    def as_row(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def _reliability(pairs: Sequence[ScoredPair]) -> list[Reliability]:
    bins: list[list[ScoredPair]] = [[] for _ in range(BINS)]
    for pair in pairs:
        bins[min(int((_confidence(pair) - 0.5) * 2 * BINS), BINS - 1)].append(pair)
    return [
        Reliability(
            above=0.5 + place / (2 * BINS),
            below=0.5 + (place + 1) / (2 * BINS),
            pairs=len(found),
            confidence=sum(map(_confidence, found)) / len(found),
            accuracy=sum(pair.hit for pair in found) / len(found),
        )
        for place, found in enumerate(bins)
        if found
    ]


def _confidence(pair: ScoredPair) -> float:
    """The probability that the model gives to its own choice."""
    return math.exp(-_softplus(-abs(pair.margin)))


def _softplus(value: float) -> float:
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))


def _correlation(points: Sequence[tuple[float, float]]) -> float | None:
    """Pearson's, with every point also mirrored at zero: which answer comes first must not matter."""
    products = (sum(x * y for x, y in points), sum(x * x for x, _ in points), sum(y * y for _, y in points))
    size = math.sqrt(products[1] * products[2])
    return products[0] / size if size else None
