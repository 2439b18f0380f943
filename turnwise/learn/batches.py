"""Splitting a packed batch: minibatches for optimiser steps, micro-batches for memory. Units are never split."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from turnwise.batch import Scores, TokenBatch
from turnwise.ranks import ALONE, Ranks


def balanced(sizes: Sequence[int], shares: int) -> list[list[int]]:
    """Deal items of these sizes into shares of about the same total: the items of each share, in order.

    The largest goes first, each to the share that has least: no total exceeds the mean by more than the largest item.
    Example: sizes 5, 3, 3, 2 and 2 make the shares [0, 3] and [1, 2, 4] of 7 and 8.
    """
    dealt: list[list[int]] = [[] for _ in range(shares)]
    totals = [0] * shares
    for item in sorted(range(len(sizes)), key=lambda item: -sizes[item]):
        least = totals.index(min(totals))
        dealt[least].append(item)
        totals[least] += sizes[item]
    return [sorted(share) for share in dealt]


def share_of(batch: TokenBatch, ranks: Ranks) -> TokenBatch:
    """What this rank learns from: whole groups, about as many tokens as every other rank has; maybe none."""
    if ranks.size == 1:
        return batch
    groups, lengths = batch.group_S.tolist(), batch.length_S.tolist()
    tokens = dict.fromkeys(groups, 0)
    for group, length in zip(groups, lengths, strict=True):
        tokens[group] += length
    names = list(tokens)
    mine = {names[place] for place in balanced(list(tokens.values()), ranks.size)[ranks.rank]}
    return batch.select([sequence for sequence, group in enumerate(groups) if group in mine])


def minibatches(
    batch: TokenBatch, *, epochs: int, count: int, rng: random.Random, ranks: Ranks = ALONE
) -> Iterator[TokenBatch]:
    """Every epoch shuffles the units of all ranks and deals them into `count` parts, skipping parts without tokens.

    Each rank gets its own sequences of every part. A rank that has none still takes part in the step, with an empty
    batch. Units are numbered by their trajectories, so that the parts do not depend on who has which.
    """
    units, lengths, names = batch.units(), batch.length_S.tolist(), batch.trajectory_S.tolist()
    own = {names[unit[0]]: unit for unit in units}
    known = ranks.gather({name: any(lengths[sequence] for sequence in unit) for name, unit in own.items()})
    has_tokens = {name: has for each in known for name, has in each.items()}
    for _ in range(epochs):
        order = rng.sample(sorted(has_tokens), len(has_tokens))
        for part in range(count):
            chosen = order[part::count]
            if any(has_tokens[name] for name in chosen):
                yield batch.select([sequence for name in chosen for sequence in own.get(name, ())])


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
    score: Callable[[TokenBatch], Scores], batch: TokenBatch, *, tokens: int, in_step: Ranks = ALONE
) -> Tensor:
    """Log-probs of the whole batch, one micro-batch at a time."""
    parts, fillers = passes(batch, tokens=tokens, in_step=in_step)
    found_T = [score(part).logprob_T for part in parts]
    for filler in fillers:
        score(filler.to(batch.ids_T.device))
    return torch.cat(found_T) if found_T else torch.zeros_like(batch.reward_T)


def no_scores(batch: TokenBatch, *, bins: int) -> Scores:
    """The scores of a rank without tokens; `bins`: of a categorical critic."""
    none_T = torch.zeros_like(batch.reward_T)
    return Scores(
        logprob_T=none_T,
        entropy_T=none_T,
        value_T=none_T,
        value_logits_TB=none_T.new_zeros(0, bins) if bins else None,
        collision_T=none_T,
        uniform_T=none_T,
        reference_kl_T=none_T,
        reverse_kl_T=none_T,
    )


def nothing(scores: Scores) -> Tensor:
    """Zero, with a gradient of zero through everything that was scored."""
    parts = (scores.logprob_T, scores.value_T, scores.value_logits_TB)
    return sum((0 * part.sum() for part in parts if part is not None), torch.zeros(()))


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
