"""Sums, means and maxima over turns or sequences, and the recurrence behind every discounted sum.

`segment` holds a row number per entry; entries with -1 belong to no row and are skipped.
"""

import torch
from torch import Tensor


def _rows(segment: Tensor, count: int) -> Tensor:
    """Send entries without a row to a spare row at the end."""
    return torch.where(segment < 0, count, segment)


def segment_sum(values: Tensor, segment: Tensor, count: int) -> Tensor:
    """y_k = Σ_{t in k} x_t; an empty segment gives 0."""
    total = values.new_zeros((count + 1, *values.shape[1:]))
    return total.index_add(0, _rows(segment, count), values)[:count]


def segment_count(segment: Tensor, count: int) -> Tensor:
    """Number of entries of each segment."""
    return torch.bincount(_rows(segment, count), minlength=count + 1)[:count]


def segment_mean(values: Tensor, segment: Tensor, count: int) -> Tensor:
    """y_k = (1/n_k) Σ_{t in k} x_t; an empty segment gives 0."""
    return segment_sum(values, segment, count) / segment_count(segment, count).clamp_min(1)


def segment_max(values: Tensor, segment: Tensor, count: int) -> Tensor:
    """y_k = max_{t in k} x_t; an empty segment gives 0."""
    start = values.new_zeros(count + 1)
    return start.scatter_reduce(0, _rows(segment, count), values, reduce="amax", include_self=False)[:count]


def spread(values: Tensor, segment: Tensor) -> Tensor:
    """Give every entry its segment's value: x_t = y_{k(t)}; entries without a segment get 0."""
    padded = torch.cat([values, values.new_zeros(1)])
    return padded.index_select(0, _rows(segment, values.numel()))


def reverse_scan(values: Tensor, decay: Tensor) -> Tensor:
    """y_t = x_t + d_t y_{t+1}, along the whole tensor; a zero decay ends a chain.

    Doubling: after j rounds y_t holds the terms up to t + 2^j, so a chain of n tokens takes log2(n) vector
    operations and no loop over tokens. Nothing is divided, so decays may be zero.
    """
    total, spare, factor = values.clone(), torch.empty_like(values), decay
    longest, step = _longest_chain(decay), 1
    while step < longest:
        # total now covers `step` terms, and factor_t = d_t … d_{t+step−1}.
        factor = factor[: total.numel() - step]
        torch.addcmul(total[:-step], factor, total[step:], out=spare[:-step])
        spare[-step:] = total[-step:]
        total, spare = spare, total
        factor = factor[:-step] * factor[step:]
        step *= 2
    return total


def _longest_chain(decay: Tensor) -> int:
    """Length of the longest run without a zero decay."""
    breaks = (decay == 0).nonzero().squeeze(1)
    ends = torch.cat([breaks.new_full((1,), -1), breaks, breaks.new_full((1,), decay.numel() - 1)])
    return int(ends.diff().max())
