"""Bring advantages to a common scale. Statistics cover all ranks: `reduce` sums a tensor over them."""

import torch
from torch import Tensor

from turnwise.batch import TokenBatch
from turnwise.ops.chains import chain
from turnwise.ops.facts import Need, Trait, declares
from turnwise.ops.groups import ROUNDING, ReturnTable, sample_std
from turnwise.ops.parameters import NonNegative
from turnwise.ops.segments import segment_count
from turnwise.ranks import Reduce


@declares(Trait.NEUTRAL)
def no_normalizer(batch: TokenBatch, advantage_T: Tensor, reduce: Reduce) -> Tensor:
    """Leave advantages as they are.

    Â_t = A_t
    """
    return advantage_T


@declares(Need.GROUPS, Trait.DIVIDES_BY_SPREAD)
def group_std(
    batch: TokenBatch,
    advantage_T: Tensor,
    reduce: Reduce,
    *,
    eps: NonNegative = 1e-6,
    population: bool = False,
) -> Tensor:
    """Divide by the standard deviation of the group's returns.

        Â_i = A_i / (std_{j in group} R_j + ε)        (sample std, unless population)

    GRPO (2402.03300). A group of one keeps its advantage. Groups never span ranks, so nothing is reduced.
    """
    table = ReturnTable.of(batch)
    std_G = sample_std(table.centred(), table.group_N, table.groups)
    if population:
        size_G = segment_count(table.group_N, table.groups)
        std_G = torch.where(size_G > 1, std_G * ((size_G - 1).double() / size_G.clamp_min(1)).sqrt(), std_G)
    return advantage_T / (std_G[batch.group_S[batch.sequence_T]] + eps).to(advantage_T)


def batch_tokens(batch: TokenBatch, advantage_T: Tensor, reduce: Reduce, *, eps: NonNegative = 1e-8) -> Tensor:
    """Whiten over all sampled tokens of the batch.

    Â_t = (A_t − mean_t A) / (std_t A + ε)

    The usual whitening of PPO. Population std.
    """
    return _whiten(batch, advantage_T, _moments(advantage_T[batch.sampled_T], reduce), eps)


@declares(Need.TURN_ADVANTAGES)
def batch_turns(batch: TokenBatch, advantage_T: Tensor, reduce: Reduce, *, eps: NonNegative = 1e-9) -> Tensor:
    """Whiten over all turns of the batch, each turn counted once however long it is.

        Â_k = (A_k − mean_k A) / (std_k A + ε)

    Return batch normalisation (ReBN) of GEM, 2510.01051. Population std. Needs advantages that are constant in a turn.
    """
    links = chain(batch)
    return _whiten(batch, advantage_T, _moments(links.pick(advantage_T)[links.open_J], reduce), eps)


def _moments(values: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
    """Mean and population std over all ranks, in double precision; two passes avoid cancellation."""
    values = values.double()
    count, total = reduce(torch.stack([values.new_tensor(values.numel()), values.sum()]))
    mean = total / count.clamp_min(1)
    std = (reduce(((values - mean) ** 2).sum()[None])[0] / count.clamp_min(1)).sqrt()
    return mean, torch.where(std <= ROUNDING * mean.abs(), 0, std)


def _whiten(batch: TokenBatch, advantage_T: Tensor, moments: tuple[Tensor, Tensor], eps: float) -> Tensor:
    """(A − mean) / (std + ε) on sampled tokens; 0 if there is no spread, whatever ε."""
    mean, std = moments
    white_T = (advantage_T.double() - mean) / (std + eps)
    return torch.where(batch.sampled_T & (std != 0), white_T, 0).to(advantage_T)


NORMALIZERS = {
    "none": no_normalizer,
    "group-std": group_std,
    "batch-tokens": batch_tokens,
    "batch-turns": batch_turns,
}
