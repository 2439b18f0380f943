"""Comparisons inside a group: tries at the same task, or turns that started from the same state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.batch import TokenBatch
from turnwise.ops.chains import chain
from turnwise.ops.credit import Credit, turn_returns
from turnwise.ops.facts import Need, Trait, declares
from turnwise.ops.parameters import Discount, NonNegative
from turnwise.ops.segments import segment_count, segment_mean, segment_sum, spread

ROUNDING = 1e-6
"""A spread below this share of the mean is rounding, not a difference: single precision keeps seven digits."""


@dataclass(frozen=True, kw_only=True)
class ReturnTable:
    """Returns per trajectory (`_N`), with the group that each belongs to."""

    batch: TokenBatch
    return_N: Tensor
    group_N: Tensor
    """-1 for trajectories outside this batch."""
    groups: int

    @classmethod
    def of(cls, batch: TokenBatch) -> ReturnTable:
        count, groups = (
            int(rows_S.max()) + 1 if rows_S.numel() else 0 for rows_S in (batch.trajectory_S, batch.group_S)
        )
        group_N = torch.full((count,), -1, dtype=torch.long, device=batch.group_S.device)
        group_N[batch.trajectory_S] = batch.group_S
        return_N = segment_sum(batch.reward_T.double(), batch.trajectory_S[batch.sequence_T], count)
        return cls(batch=batch, return_N=return_N, group_N=group_N, groups=groups)

    def centred(self) -> Tensor:
        """R_i − mean of the group."""
        return centre(self.return_N, self.group_N, self.groups)

    def to_tokens(self, values_N: Tensor) -> Tensor:
        """Give every sampled token its trajectory's number."""
        batch = self.batch
        return torch.where(batch.sampled_T, values_N.to(batch.reward_T)[batch.trajectory_S[batch.sequence_T]], 0)


@declares(Need.GROUPS, Trait.SAME_IN_TURN, Trait.SAME_IN_SEQUENCE)
def group_mean(batch: TokenBatch) -> Credit:
    """Compare a trajectory's return with its group's mean.

        A_i = R_i − mean_{j in group} R_j

    Shared by all sampled tokens of the trajectory. GRPO before its division by the group's standard deviation
    (DeepSeekMath, 2402.03300); as it stands, Dr. GRPO (2503.20783). A group of one has nothing to compare: A = 0.
    """
    table = ReturnTable.of(batch)
    return Credit(advantage_T=table.to_tokens(table.centred()))


@declares(Need.GROUPS, Trait.SAME_IN_TURN, Trait.SAME_IN_SEQUENCE)
def leave_one_out(batch: TokenBatch) -> Credit:
    """Compare a trajectory's return with the mean of the others in its group.

        A_i = R_i − mean_{j ≠ i} R_j = n/(n−1) (R_i − mean R)

    RLOO (2402.14740). A group of one has nothing to compare: A = 0.
    """
    table = ReturnTable.of(batch)
    size_N = spread(segment_count(table.group_N, table.groups), table.group_N)
    return Credit(advantage_T=table.to_tokens(table.centred() * size_N / (size_N - 1).clamp_min(1)))


@declares(Need.GROUPS, Need.STATE_KEYS, Trait.SAME_IN_TURN)
@declares(Trait.DIVIDES_BY_SPREAD, std=True)
def anchor_state(batch: TokenBatch, *, omega: NonNegative = 1.0, gamma: Discount = 0.95, std: bool = True) -> Credit:
    """Group comparison of whole episodes plus a comparison of turns that started from the same state.

        A_t = A_episode + ω A_step
        A_episode = (R_i − mean_group) / std_group
        A_step    = (G_k − mean_anchor) / std_anchor,   G_k = R_k + γ G_{k+1}

    Anchors are the turns of one group with equal `state_key`; a state met once gives A_step = 0, so without repeats
    this is GRPO. `std=False` leaves both divisions out. GiGPO (2505.10978); its γ of 0.95 is not re-checked.
    """
    table = ReturnTable.of(batch)
    episode_T = table.to_tokens(_compare(table.return_N, table.group_N, table.groups, std))
    links = chain(batch)
    return_J = turn_returns(links, gamma=gamma)
    anchor_J = batch.anchor_K[links.pick(batch.turn_T)[links.open_J]]
    anchors = int(batch.anchor_K.max()) + 1 if batch.turns else 0
    step_J = _compare(return_J, anchor_J, anchors, std).to(return_J)
    return Credit(advantage_T=episode_T + omega * links.put(spread(step_J, links.turn_M)))


def centre(values: Tensor, segment: Tensor, count: int) -> Tensor:
    """x − mean of its segment, in double precision; 0 outside segments and where a segment is constant."""
    values = values.double()
    mean = segment_mean(values, segment, count)
    centred = values - spread(mean, segment)
    equal = segment_mean(centred**2, segment, count).sqrt() <= ROUNDING * mean.abs()
    return torch.where((segment < 0) | spread(equal, segment), 0, centred)


def sample_std(centred: Tensor, segment: Tensor, count: int) -> Tensor:
    """Sample standard deviation of values whose segment means are 0; 1 for a segment of one."""
    size = segment_count(segment, count)
    variance = segment_sum(centred**2, segment, count) / (size - 1).clamp_min(1)
    return torch.where(size > 1, variance.sqrt(), 1.0)


def _compare(values: Tensor, segment: Tensor, count: int, divide: bool) -> Tensor:
    """(x − mean) / std inside each segment; a segment of one gives 0."""
    centred = centre(values, segment, count)
    if not divide:
        return centred
    return centred / (spread(sample_std(centred, segment, count), segment) + 1e-6)
