"""What a step did to every sampled token: its log-prob before and after, its advantage, its ratio, whether clipped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import zstandard
from torch import Tensor

from turnwise.algorithm.objective import token_ratios
from turnwise.batch import TokenBatch
from turnwise.learn.learner import Learner
from turnwise.runs.disk import write_whole
from turnwise.runs.journal import plain

_DIGITS = 6
"""Significant ones: to be looked at, not to be computed with."""


def write_tokens(path: Path, learner: Learner, batch: TokenBatch) -> None:
    """Write one line per trajectory of a prepared batch, after the step's updates, over its sampled tokens in order.

        {"id": "geo-17/0", "old": [-0.7, -0.2], "new": [-0.6, -0.2], "advantage": [0.5, 0.5],
         "ratio": [1.1, 1.0], "clipped": [0, 0]}

    A row of one update per rollout never scores its batch before that; then the sampler's log-probs stand for `old`.
    Demonstrations have neither: their lines, and those of a batch they are part of, go without `old`, `ratio` and
    `clipped`.
    """
    lines = (json.dumps(plain(row, lambda _: None)).encode() + b"\n" for row in _rows(learner, batch))
    write_whole(path, zstandard.ZstdCompressor(level=1, write_checksum=True).compress(b"".join(lines)))


def _rows(learner: Learner, batch: TokenBatch) -> Iterator[dict[str, Any]]:
    streams = {name: _by_trajectory(batch, values_T) for name, values_T in _streams(learner, batch).items()}
    for number, trajectory in enumerate(batch.trajectory_names):
        yield {"id": trajectory, **{name: values[number] for name, values in streams.items()}}


def _streams(learner: Learner, batch: TokenBatch) -> dict[str, Tensor]:
    assert batch.advantage_T is not None  # the batch was prepared
    new_T = learner.score(batch)
    old_T = batch.mu_T if batch.old_T is None else batch.old_T
    if old_T is None or bool(old_T[batch.sampled_T].isnan().any()):  # nobody knows, at least of some tokens
        return {"new": new_T, "advantage": batch.advantage_T}
    ratio_T, clipped_T = token_ratios(learner.row, batch.with_(old_T=old_T), new_T)
    return {"old": old_T, "new": new_T, "advantage": batch.advantage_T, "ratio": ratio_T, "clipped": clipped_T}


def _by_trajectory(batch: TokenBatch, values_T: Tensor) -> list[Sequence[float]]:
    """The values of each trajectory's sampled tokens; the sequences of a trajectory are neighbours in a batch."""
    owner = batch.trajectory_S[batch.sequence_T][batch.sampled_T]
    counts = torch.bincount(owner, minlength=len(batch.trajectory_names)).tolist()
    return [_numbers(part) for part in values_T[batch.sampled_T].split(counts)]


def _numbers(values: Tensor) -> list[float]:
    if values.dtype == torch.bool:
        return values.int().tolist()
    return [float(f"{value:.{_DIGITS}g}") for value in values.tolist()]
