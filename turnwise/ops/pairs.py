"""Comparisons inside a unit: its members, how good each was, and how far the policy moved on it.

`_M` is one entry per member (a trajectory of this batch), `_P` per pair of members, `_C` per column: the whole answer,
or its turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from turnwise.batch import Scores, TokenBatch
from turnwise.ops.filters import EPSILON
from turnwise.ops.segments import segment_count, segment_mean, segment_sum

Against = Literal["old", "reference"]
"""The policy that log-ratios are taken against: the one before the step's first update, or the reference."""
Length = Literal["sum", "mean"]
"""A log-ratio is a sum over tokens, or their mean: then long answers count no more than short ones."""
PairLevel = Literal["sequence", "turn"]
"""Compare whole answers, or the k-th turn of one with the k-th turn of the other."""
PAIR_METRICS = {
    "pairs/accuracy": "share of pairs in which the policy moved more towards the better answer; a tie counts half",
    "pairs/margin": "log-ratio of the better answer minus that of the worse, sums over their tokens",
    "pairs/chosen": "log-ratio of the better answer",
    "pairs/rejected": "log-ratio of the worse answer",
    "pairs/kl_chosen": "exact KL from the reference to the policy along the better answer, summed over its tokens",
    "pairs/kl_rejected": "the same along the worse answer",
}
"""Name and meaning of what `pair_measures` gives."""


@dataclass(frozen=True, kw_only=True)
class Members:
    """The trajectories of a batch, with the unit that each belongs to."""

    unit_M: Tensor
    units: int
    row_T: Tensor
    """The member of every sampled token; -1 for other tokens."""
    column_T: Tensor
    columns: int

    @classmethod
    def of(cls, batch: TokenBatch, *, level: PairLevel = "sequence") -> Members:
        row_S, count = batch.trajectory_rows
        unit_S, units = batch.unit_rows
        unit_M = unit_S.new_zeros(count).scatter(0, row_S, unit_S)
        by_turn = level == "turn" and batch.turns > 0
        return cls(
            unit_M=unit_M,
            units=units,
            row_T=torch.where(batch.sampled_T, row_S[batch.sequence_T], -1),
            column_T=batch.index_T if by_turn else torch.zeros_like(batch.turn_T),
            columns=int(batch.index_K.max()) + 1 if by_turn else 1,
        )

    @property
    def count(self) -> int:
        return self.unit_M.numel()

    def total(self, values_T: Tensor, length: Length = "sum") -> Tensor:
        """The sum or mean of a stream over the sampled tokens of every member and column."""
        pool = segment_sum if length == "sum" else segment_mean
        return pool(values_T, self._cell_T, self.count * self.columns).view(self.count, self.columns)

    def mean(self, values_M: Tensor) -> Tensor:
        """The mean over the members of each unit."""
        return segment_mean(values_M, self.unit_M, self.units)

    @property
    def speaks_MC(self) -> Tensor:
        """Whether a member has tokens in a column."""
        return segment_count(self._cell_T, self.count * self.columns).view(self.count, self.columns) > 0

    @property
    def _cell_T(self) -> Tensor:
        return torch.where(self.row_T < 0, -1, self.row_T * self.columns + self.column_T)


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Two members of one unit each, the better one first."""

    better_P: Tensor
    worse_P: Tensor
    unit_P: Tensor
    units: int

    @classmethod
    def of(cls, members: Members, merit_M: Tensor, *, ties: bool = False) -> Pairs:
        """All pairs of each unit; those of equal merit only with `ties`."""
        order_M = members.unit_M.argsort(stable=True)
        sizes_U = segment_count(members.unit_M, members.units)
        largest = int(sizes_U.max()) if members.units else 0
        shifts = [(order_M[:-gap], order_M[gap:]) for gap in range(1, largest)]
        left_P = torch.cat([order_M[:0], *(left for left, _ in shifts)])
        right_P = torch.cat([order_M[:0], *(right for _, right in shifts)])
        left, right = merit_M[left_P], merit_M[right_P]
        wanted_P = members.unit_M[left_P] == members.unit_M[right_P]
        if not ties:
            wanted_P = wanted_P & ((left - right).abs() > EPSILON * (left.abs() + right.abs()))
        better_P = torch.where(left >= right, left_P, right_P)[wanted_P]
        worse_P = torch.where(left >= right, right_P, left_P)[wanted_P]
        return cls(better_P=better_P, worse_P=worse_P, unit_P=members.unit_M[better_P], units=members.units)

    def difference(self, values_MC: Tensor) -> Tensor:
        """The better member's number minus the worse one's."""
        return values_MC[self.better_P] - values_MC[self.worse_P]

    def mean(self, values_P: Tensor) -> Tensor:
        """The mean over the pairs of each unit; 0 where there are none."""
        return segment_mean(values_P, self.unit_P, self.units)

    def mean_of_columns(self, members: Members, values_PC: Tensor) -> Tensor:
        """The same of numbers per column: of each pair first the mean over the columns in which both have tokens."""
        speaks_MC = members.speaks_MC
        both_PC = speaks_MC[self.better_P] & speaks_MC[self.worse_P]
        return self.mean(torch.where(both_PC, values_PC, 0).sum(1) / both_PC.sum(1).clamp_min(1))


def returns(batch: TokenBatch, members: Members) -> Tensor:
    """What each member earned, in double precision."""
    return members.total(batch.reward_T.double()).sum(1)


def wins(batch: TokenBatch, members: Members) -> Tensor:
    """Each member's win probability, from the judge."""
    if "wins" not in batch.extra_T:
        raise ValueError("the batch has no win probabilities (extra_T['wins']); set judge, or use a file that has them")
    return members.total(batch.extra_T["wins"].reshape(-1).double()).sum(1)


def merit(batch: TokenBatch, members: Members) -> Tensor:
    """How good each member was: the judge's win probability if there is one, else its return."""
    return wins(batch, members) if "wins" in batch.extra_T else returns(batch, members)


def moved(batch: TokenBatch, logprob_T: Tensor, against: Against) -> Tensor:
    """log π(y_t) − log π_base(y_t); 0 on environment tokens."""
    base_T = batch.old_T if against == "old" else batch.ref_T
    if base_T is None:
        raise ValueError(f"log-ratios are taken against {against!r}, which is not assigned; let the learner score it")
    batch.require_finite(f"log-prob {against!r}", base_T)
    return torch.where(batch.sampled_T, logprob_T - base_T, 0)


def pair_measures(batch: TokenBatch, scores: Scores, *, against: Against) -> dict[str, Tensor]:
    """What the policy makes of the pairs of each unit; whole answers, sums over tokens, whatever the loss does."""
    members = Members.of(batch)
    pairs = Pairs.of(members, merit(batch, members))
    streams = {"": moved(batch, scores.logprob_T.detach(), against)}
    if scores.reverse_kl_T is not None:
        streams["kl_"] = scores.reverse_kl_T.detach()
    measures: dict[str, Tensor] = {}
    for kind, values_T in streams.items():
        value_M = members.total(values_T).squeeze(1)
        chosen_P, rejected_P = value_M[pairs.better_P], value_M[pairs.worse_P]
        if not kind:
            measures["pairs/accuracy"] = pairs.mean(torch.heaviside(chosen_P - rejected_P, chosen_P.new_tensor(0.5)))
            measures["pairs/margin"] = pairs.mean(chosen_P - rejected_P)
        measures[f"pairs/{kind}chosen"] = pairs.mean(chosen_P)
        measures[f"pairs/{kind}rejected"] = pairs.mean(rejected_P)
    return measures
