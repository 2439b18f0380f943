"""Splitting a packed batch: minibatches for optimiser steps, micro-batches for memory. Units are never split."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import Tensor

from turnwise.batch import TokenBatch
from turnwise.policy.learnable import Scorer
from turnwise.ranks import ALONE, Ranks


def minibatches(
    batch: TokenBatch, *, epochs: int, count: int, rng: random.Random, ranks: Ranks = ALONE
) -> Iterator[TokenBatch]:
    """Every epoch shuffles the units of all ranks and deals them into `count` parts, skipping parts without tokens.

    Each rank gets its own sequences of every part. A rank that has none still takes part in the step, with an empty
    batch.
    """
    units, lengths = batch.units(), batch.length_S.tolist()
    per_rank = ranks.gather(len(units))
    first, total = sum(per_rank[: ranks.rank]), sum(per_rank)
    for _ in range(epochs):
        order = rng.sample(range(total), total)
        for part in range(count):
            mine = [units[number - first] for number in order[part::count] if 0 <= number - first < len(units)]
            chosen = [sequence for unit in mine for sequence in unit]
            if any(ranks.gather(any(lengths[sequence] for sequence in chosen))):
                yield batch.select(chosen)


def micro_batches(batch: TokenBatch, *, tokens: int) -> Iterator[TokenBatch]:
    """Neighbouring units with at most `tokens` tokens together (a longer unit goes alone).

    A unit holds whole trajectories, because their sequences share a bootstrap value. Units without tokens go with their
    neighbours: a model cannot run on empty input.
    """
    lengths = batch.length_S.tolist()
    chosen: list[int] = []
    size = 0
    for unit in batch.units():
        more = sum(lengths[row] for row in unit)
        if size and more and size + more > tokens:
            yield batch.select(chosen)
            chosen, size = [], 0
        chosen += unit
        size += more
    if chosen or not batch.sequences:
        yield batch if len(chosen) == batch.sequences else batch.select(chosen)


def split_idle(batch: TokenBatch) -> tuple[TokenBatch, TokenBatch | None]:
    """Units with a nonzero advantage (at least one unit, so that there is a loss), and units without a gradient.

    An episode whose first prompt did not fit has no tokens: a model cannot run on such sequences alone.
    """
    assert batch.advantage_T is not None
    lengths = batch.length_S.tolist()
    moved = set(batch.sequence_T[batch.sampled_T & (batch.advantage_T != 0)].unique().tolist())
    spoken = [unit for unit in batch.units() if any(lengths[row] for row in unit)]
    moving = [unit for unit in spoken if moved.intersection(unit)] or spoken[:1]
    chosen = {row for unit in moving for row in unit}
    if len(moving) == len(spoken):
        return batch, None
    return batch.select(sorted(chosen)), batch.select([row for row in range(batch.sequences) if row not in chosen])


def passes(
    batch: TokenBatch | None, *, tokens: int, in_step: Ranks = ALONE
) -> tuple[list[TokenBatch], list[TokenBatch]]:
    """The micro-batches of a batch that have tokens, and fillers that count for nothing.

    Ranks that go in step, because each holds a part of every weight, must all make as many passes as the busiest.
    """
    parts = [] if batch is None else [part for part in micro_batches(batch, tokens=tokens) if part.tokens]
    return parts, [_filler()] * (max(in_step.gather(len(parts))) - len(parts))


@torch.no_grad()
def score_in_parts(
    policy: Scorer, batch: TokenBatch, *, tokens: int, temperature: float, in_step: Ranks = ALONE
) -> Tensor:
    """Log-probs of the whole batch, one micro-batch at a time."""
    parts, fillers = passes(batch, tokens=tokens, in_step=in_step)
    found_T = [policy.score(part, temperature=temperature).logprob_T for part in parts]
    for filler in fillers:
        policy.score(filler.to(batch.ids_T.device), temperature=temperature)
    return torch.cat(found_T) if found_T else torch.zeros_like(batch.reward_T)


def _filler() -> TokenBatch:
    """One sequence of two tokens, of which the second is sampled."""
    zero, two = torch.zeros(1, dtype=torch.long), torch.zeros(2, dtype=torch.long)
    return TokenBatch(
        ids_T=two,
        position_T=torch.arange(2),
        sequence_T=two,
        turn_T=torch.tensor([-1, 0]),
        source_T=torch.arange(2),
        reward_T=torch.zeros(2),
        sequence_K=zero,
        index_K=zero,
        version_K=zero,
        anchor_K=zero - 1,
        length_S=zero + 2,
        trajectory_S=zero,
        group_S=zero,
        seat_S=zero,
        truncated_S=zero.bool(),
    )
