"""Per-token record of a step: log-prob before and after, advantage, ratio, whether clipped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
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
"""Significant digits: enough to read, not to compute with."""


def write_tokens(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write the rows of `token_rows`, one per line."""
    lines = (json.dumps(plain(row, lambda _: None)).encode() + b"\n" for row in rows)
    write_whole(path, zstandard.ZstdCompressor(level=1, write_checksum=True).compress(b"".join(lines)))


def token_rows(learner: Learner, batch: TokenBatch) -> Iterator[dict[str, Any]]:
    """A row per trajectory of a prepared batch, after the step's updates, over its sampled tokens in order.

        {"id": "geo-17/0", "spans": [[3, 5]], "ids": [40, 41], "old": [-0.7, -0.2], "new": [-0.6, -0.2],
         "advantage": [0.5, 0.5], "ratio": [1.1, 1.0], "clipped": [0, 0]}

    `spans` are the positions of the sampled tokens in the trajectory, `ids` the tokens. With one update per rollout
    there is no score before the update: rows have the sampler's `mu` instead of `old`, and ratios are against `mu`.
    Demonstrations have neither; their batches also have no `ratio` and `clipped`.
    """
    streams = {name: _by_trajectory(batch, values_T) for name, values_T in _streams(learner, batch).items()}
    spans = sampled_spans(batch)
    for number in sorted(set(batch.trajectory_S.tolist())):  # other ranks have the rest
        values = {name: values[number] for name, values in streams.items()}
        yield {"id": batch.trajectory_names[number], "spans": spans[number], **values}


def sampled_spans(batch: TokenBatch) -> list[list[tuple[int, int]]]:
    """Where each trajectory's sampled tokens begin and end: `[(3, 6), (8, 10)]` in `TokenBatch`'s example."""
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
    if before_T is None or bool(before_T[batch.sampled_T].isnan().any()):  # unknown for some tokens
        return always
    ratio_T, clipped_T = token_ratios(learner.row, batch.with_(old_T=before_T), always["new"])
    return {name: before_T, **always, "ratio": ratio_T, "clipped": clipped_T}


def _by_trajectory(batch: TokenBatch, values_T: Tensor) -> list[Sequence[float]]:
    """The values of each trajectory's sampled tokens; a trajectory's sequences are adjacent in a batch."""
    owner = batch.trajectory_S[batch.sequence_T][batch.sampled_T]
    counts = torch.bincount(owner, minlength=len(batch.trajectory_names)).tolist()
    return [_numbers(part) for part in values_T[batch.sampled_T].split(counts)]


def _numbers(values: Tensor) -> list[float]:
    if not values.is_floating_point():
        return values.int().tolist()
    return [float(f"{value:.{_DIGITS}g}") for value in values.tolist()]
