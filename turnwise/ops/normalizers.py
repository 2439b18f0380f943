"""Bring advantages to a common scale. Statistics are those of all ranks: `reduce` sums a tensor over them."""

from collections.abc import Callable

import torch
from torch import Tensor

from turnwise.ops.chains import chain
from turnwise.ops.groups import ReturnTable, sample_std
from turnwise.ops.parameters import NonNegative
from turnwise.types import TokenBatch

Reduce = Callable[[Tensor], Tensor]


def alone(values: Tensor) -> Tensor:
    """The `reduce` of a single process."""
    return values


def no_normalizer(batch: TokenBatch, advantage_T: Tensor, reduce: Reduce) -> Tensor:
    """Leave advantages as they are.

    Â_t = A_t
    """
    return advantage_T


def group_std(batch: TokenBatch, advantage_T: Tensor, reduce: Reduce, *, eps: NonNegative = 1e-6) -> Tensor:
    """Divide by the standard deviation of the group's returns.

        Â_i = A_i / (std_{j in group} R_j + ε)        (sample std)

    GRPO (2402.03300). A group of one keeps its advantage. Groups never span ranks, so nothing is reduced.
    """
    table = ReturnTable.of(batch)
    std_G = sample_std(table.centred(), table.group_N, table.groups)
    return advantage_T / (std_G[batch.group_S[batch.sequence_T]] + eps)


def batch_tokens(batch: TokenBatch, advantage_T: Tensor, reduce: Reduce, *, eps: NonNegative = 1e-8) -> Tensor:
    """Whiten over all sampled tokens of the batch.

    Â_t = (A_t − mean_t A) / (std_t A + ε)

    The usual whitening of PPO. Population std.
    """
    sampled_T = batch.sampled_T
    mean, std = _moments(advantage_T[sampled_T], reduce)
    return torch.where(sampled_T, (advantage_T - mean) / (std + eps), 0)


def batch_turns(batch: TokenBatch, advantage_T: Tensor, reduce: Reduce, *, eps: NonNegative = 1e-9) -> Tensor:
    """Whiten over all turns of the batch, each turn counted once however long it is.

        Â_k = (A_k − mean_k A) / (std_k A + ε)

    Return batch normalisation (ReBN) of GEM, 2510.01051. Population std. Needs advantages that are constant in a turn.
    """
    links = chain(batch)
    mean, std = _moments(links.pick(advantage_T)[links.open_J], reduce)
    return torch.where(batch.sampled_T, (advantage_T - mean) / (std + eps), 0)


def _moments(values: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation over all ranks, in two passes so that nothing cancels."""
    count, total = reduce(torch.stack([values.new_tensor(values.numel()), values.sum()]).double())
    mean = total / count.clamp_min(1)
    variance = reduce(((values - mean) ** 2).sum()[None])[0] / count.clamp_min(1)
    return mean.to(values), variance.sqrt().to(values)


NORMALIZERS = {
    "none": no_normalizer,
    "group-std": group_std,
    "batch-tokens": batch_tokens,
    "batch-turns": batch_turns,
}
