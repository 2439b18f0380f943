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

        {"id": "geo-17/0", "spans": [[3, 5]], "ids": [40, 41], "old": [-0.7, -0.2], "new": [-0.6, -0.2],
         "advantage": [0.5, 0.5], "ratio": [1.1, 1.0], "clipped": [0, 0]}

    `spans` are where the sampled tokens are among all tokens of the trajectory, `ids` which ones they are.
    A row of one update per rollout never scores its batch before that; then a line has the sampler's `mu` and no `old`,
    and its ratios are against `mu`. Demonstrations have neither: their lines, and those of a batch they are part of, go
    without `ratio` and `clipped` too.
    """
    lines = (json.dumps(plain(row, lambda _: None)).encode() + b"\n" for row in _rows(learner, batch))
    write_whole(path, zstandard.ZstdCompressor(level=1, write_checksum=True).compress(b"".join(lines)))


def _rows(learner: Learner, batch: TokenBatch) -> Iterator[dict[str, Any]]:
    streams = {name: _by_trajectory(batch, values_T) for name, values_T in _streams(learner, batch).items()}
    for number, (trajectory, spans) in enumerate(zip(batch.trajectory_names, sampled_spans(batch), strict=True)):
        yield {"id": trajectory, "spans": spans, **{name: values[number] for name, values in streams.items()}}


def sampled_spans(batch: TokenBatch) -> list[list[tuple[int, int]]]:
    """For each trajectory where its sampled tokens begin and end: `[(3, 6), (8, 10)]` in `TokenBatch`'s example."""
    owner_T = batch.trajectory_S[batch.sequence_T]
    counts = torch.bincount(owner_T, minlength=len(batch.trajectory_names)).tolist()
    return [_runs(part) for part in batch.sampled_T.split(counts)]


def _runs(mask: Tensor) -> list[tuple[int, int]]:
    edges = torch.nn.functional.pad(mask.int(), (1, 1)).diff()
    starts, ends = (edges == 1).nonzero().flatten().tolist(), (edges == -1).nonzero().flatten().tolist()
    return list(zip(starts, ends, strict=True))


def _streams(learner: Learner, batch: TokenBatch) -> dict[str, Tensor]:
    always = {"ids": batch.ids_T, "new": learner.score(batch)}
    if batch.advantage_T is not None:
        always["advantage"] = batch.advantage_T
    name, before_T = ("mu", batch.mu_T) if batch.old_T is None else ("old", batch.old_T)
    if before_T is None or bool(before_T[batch.sampled_T].isnan().any()):  # nobody knows, at least of some tokens
        return always
    ratio_T, clipped_T = token_ratios(learner.row, batch.with_(old_T=before_T), always["new"])
    return {name: before_T, **always, "ratio": ratio_T, "clipped": clipped_T}


def _by_trajectory(batch: TokenBatch, values_T: Tensor) -> list[Sequence[float]]:
    """The values of each trajectory's sampled tokens; the sequences of a trajectory are neighbours in a batch."""
    owner = batch.trajectory_S[batch.sequence_T][batch.sampled_T]
    counts = torch.bincount(owner, minlength=len(batch.trajectory_names)).tolist()
    return [_numbers(part) for part in values_T[batch.sampled_T].split(counts)]


def _numbers(values: Tensor) -> list[float]:
    if not values.is_floating_point():
        return values.int().tolist()
    return [float(f"{value:.{_DIGITS}g}") for value in values.tolist()]
