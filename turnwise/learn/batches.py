"""Cutting a packed batch: minibatches for optimiser steps, micro-batches for memory. A sequence is never cut."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from turnwise.batch import TokenBatch
from turnwise.policy.text import Reference, TextPolicy


def minibatches(batch: TokenBatch, *, epochs: int, count: int, rng: random.Random) -> Iterator[TokenBatch]:
    """Every epoch shuffles the sequences and deals them into `count` parts; parts without tokens are left out."""
    lengths = batch.length_S.tolist()
    for _ in range(epochs):
        order = rng.sample(range(batch.sequences), batch.sequences)
        for part in range(count):
            chosen = order[part::count]
            if any(lengths[row] for row in chosen):
                yield batch.select(chosen)


def micro_batches(batch: TokenBatch, *, tokens: int) -> Iterator[TokenBatch]:
    """Neighbouring sequences with at most `tokens` tokens together (one that is longer goes alone).

    The sequences of a trajectory stay together, because they share the value of the state in which it was cut. Those
    without a token go with their neighbours: no model can be run on nothing.
    """
    lengths, trajectories = batch.length_S.tolist(), batch.trajectory_S.tolist()
    runs = _runs(trajectories)
    chosen: list[int] = []
    size = 0
    for run in runs:
        more = sum(lengths[row] for row in run)
        if size and more and size + more > tokens:
            yield batch.select(chosen)
            chosen, size = [], 0
        chosen += run
        size += more
    if chosen:
        yield batch if len(chosen) == batch.sequences else batch.select(chosen)


@torch.no_grad()
def score_in_parts(policy: TextPolicy | Reference, batch: TokenBatch, *, tokens: int, temperature: float) -> Tensor:
    """Log-probs of the whole batch, one micro-batch after the other."""
    parts = micro_batches(batch, tokens=tokens)
    return torch.cat([policy.score(part, temperature=temperature).logprob_T for part in parts])


def _runs(values: Sequence[int]) -> list[list[int]]:
    """Row numbers of neighbours with equal values."""
    runs: list[list[int]] = []
    for row, value in enumerate(values):
        if runs and values[runs[-1][-1]] == value:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs
