"""Token weights from global counts: the loss is a plain sum of weight × term, however the batch is split."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from turnwise.batch import TokenBatch
from turnwise.ops.facts import Need, declares
from turnwise.ops.parameters import Positive
from turnwise.ops.segments import segment_count, spread
from turnwise.ops.terms import Level
from turnwise.ranks import Reduce


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What one optimiser step averages over, across all ranks and micro-batches, at every level.

    Only sampled, unrejected tokens count, and only turns, sequences and trajectories that still have one. A part of a
    trajectory counts by its share of the trajectory's tokens, so the parts add up to one.
    """

    tokens: float
    turns: float
    sequences: float
    trajectories: float
    units: float

    @classmethod
    def of(cls, batch: TokenBatch) -> "Counts":
        kept_T = kept_tokens(batch)
        turns_K = segment_count(torch.where(kept_T, batch.turn_T, -1), batch.turns)
        sequences_S = segment_count(torch.where(kept_T, batch.sequence_T, -1), batch.sequences)
        size_S = _trajectory_size(batch).clamp_min(1)
        unit_T, units = Level.UNIT.rows(batch)
        units_U = segment_count(torch.where(kept_T, unit_T, -1), units)
        return cls(
            tokens=int(kept_T.sum()),
            turns=int((turns_K > 0).sum()),
            sequences=int((sequences_S > 0).sum()),
            trajectories=float((sequences_S.double() / size_S).sum()),
            units=int((units_U > 0).sum()),
        )

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(**{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)})

    def over_ranks(self, reduce: Reduce) -> "Counts":
        """The sum of every rank's counts."""
        names = [item.name for item in fields(self)]
        summed = reduce(torch.tensor([getattr(self, name) for name in names], dtype=torch.double))
        return Counts(**{name: float(total) for name, total in zip(names, summed, strict=True)})


def kept_tokens(batch: TokenBatch) -> Tensor:
    """Sampled tokens that the mismatch weight did not reject."""
    if batch.mismatch_T is None:
        return batch.sampled_T
    return batch.sampled_T & (batch.mismatch_T != 0)


def trajectory_tokens(batch: TokenBatch) -> Tensor:
    """Kept tokens of each sequence's trajectory, in a batch that holds the whole trajectory."""
    trajectory_T = torch.where(kept_tokens(batch), batch.trajectory_S[batch.sequence_T], -1)
    count = int(batch.trajectory_S.max()) + 1 if batch.sequences else 0
    return segment_count(trajectory_T, count)[batch.trajectory_S]


@declares(Need.TOKEN_COUNT)
def token_mean(batch: TokenBatch, counts: Counts) -> Tensor:
    """Every token counts the same.

    (1/N_tokens) Σ_t
    """
    return _uniform(batch, max(counts.tokens, 1))


@declares(Need.TURN_COUNT)
def turn_mean(batch: TokenBatch, counts: Counts) -> Tensor:
    """Every turn counts the same, and every token inside a turn.

    (1/N_turns) Σ_k (1/n_k) Σ_{t in k}
    """
    segment_T = torch.where(kept_tokens(batch), batch.turn_T, -1)
    return _mean_of_means(batch, segment_T, batch.turns, max(counts.turns, 1))


@declares(Need.SEQUENCE_COUNT)
def sequence_mean(batch: TokenBatch, counts: Counts) -> Tensor:
    """Every sequence counts the same, and every token inside a sequence.

        (1/N_sequences) Σ_i (1/n_i) Σ_{t in i}

    A trajectory whose history was rewritten has several sequences and weighs more; `trajectory-mean` counts it once.
    """
    segment_T = torch.where(kept_tokens(batch), batch.sequence_T, -1)
    return _mean_of_means(batch, segment_T, batch.sequences, max(counts.sequences, 1))


@declares(Need.SEQUENCE_COUNT)
def sequence_sum(batch: TokenBatch, counts: Counts) -> Tensor:
    """Sum over the tokens of a sequence, mean over sequences: no length normalisation.

    (1/N_sequences) Σ_i Σ_{t in i}
    """
    return _uniform(batch, max(counts.sequences, 1))


@declares(Need.TRAJECTORY_COUNT)
def trajectory_mean(batch: TokenBatch, counts: Counts) -> Tensor:
    """Every trajectory counts the same, and every token inside a trajectory, however often its history was rewritten.

    (1/N_trajectories) Σ_i (1/n_i) Σ_{t in i}
    """
    size_T = _trajectory_size(batch)[batch.sequence_T].to(batch.reward_T)
    return torch.where(kept_tokens(batch), 1 / (size_T.clamp_min(1) * _trajectories(counts)), 0)


@declares(Need.TRAJECTORY_COUNT)
def trajectory_sum(batch: TokenBatch, counts: Counts) -> Tensor:
    """Sum over the tokens of a trajectory, mean over trajectories: no length normalisation.

    (1/N_trajectories) Σ_i Σ_{t in i}
    """
    return _uniform(batch, _trajectories(counts))


@declares(Need.UNIT_COUNT)
def unit_mean(batch: TokenBatch, counts: Counts) -> Tensor:
    """Every unit counts the same, and every token inside it: a pair, a group, or a trajectory.

    (1/N_units) Σ_u (1/n_u) Σ_{t in u}
    """
    segment_T, count = Level.UNIT.rows(batch)
    kept_T = torch.where(kept_tokens(batch), segment_T, -1)
    return _mean_of_means(batch, kept_T, count, max(counts.units, 1))


@declares(Need.TRAJECTORY_COUNT)
def constant(batch: TokenBatch, counts: Counts, *, length: Positive = 1024.0) -> Tensor:
    """Divide by trajectories times a fixed length.

        (1 / (N_trajectories · length)) Σ_t

    Dr. GRPO (2503.20783), with the longest generation allowed as length.
    """
    return _uniform(batch, _trajectories(counts) * length)


def _trajectory_size(batch: TokenBatch) -> Tensor:
    """A batch that was not packed only knows its own tokens."""
    return trajectory_tokens(batch) if batch.kept_S is None else batch.kept_S


def _trajectories(counts: Counts) -> float:
    """Below 1 if a step holds only part of a trajectory; 1 if it holds nothing."""
    return counts.trajectories or 1


def _uniform(batch: TokenBatch, denominator: float) -> Tensor:
    return kept_tokens(batch).to(batch.reward_T) / denominator


def _mean_of_means(batch: TokenBatch, segment_T: Tensor, count: int, denominator: float) -> Tensor:
    size_T = spread(segment_count(segment_T, count).to(batch.reward_T), segment_T)
    return torch.where(segment_T >= 0, 1 / (size_T.clamp_min(1) * denominator), 0)


WEIGHTS = {
    "token-mean": token_mean,
    "turn-mean": turn_mean,
    "trajectory-mean": trajectory_mean,
    "trajectory-sum": trajectory_sum,
    "sequence-mean": sequence_mean,
    "sequence-sum": sequence_sum,
    "unit-mean": unit_mean,
    "constant": constant,
}
