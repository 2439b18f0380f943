"""Padded batches for plug-ins: as a host would hand them over, and the packed batch that they stand for."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from tests.ops.batches import Case, EpisodeShape, TurnShape, make_case
from turnwise.algorithm import Algorithm, preset
from turnwise.plugins.padded import Padded

CLIP = {"surrogate": {"kind": "ppo-clip", "low": 0.2, "high": 0.28}}
GROUP = {
    "sampling": {"kind": "group", "size": 2},
    "advantage": "group-mean",
    "normalizer": "group-std",
    "critic": {"level": "none"},
}
ST_GRPO = preset("st-ppo").override({**GROUP, "name": "st-grpo"})
"""ST-PPO's loss and scale with an advantage that needs no critic."""


def clipped(*, weights: str = "token-mean", ratio: str = "token", dual: float | None = None) -> Algorithm:
    """The clip that every host has, with group advantages."""
    surrogate = {**CLIP["surrogate"], "dual": dual}
    return Algorithm.of({**GROUP, "surrogate": surrogate, "weights": weights, "ratio": ratio})


def flat_case(seed: int = 0, *, tasks: int = 3, tries: int = 2) -> Case:
    """A ragged batch in which every trajectory is one sequence that ended by itself, as in a host's row."""
    rng = random.Random(seed)

    def turn() -> TurnShape:
        return TurnShape(prompt=rng.randint(1, 3), sampled=rng.randint(1, 4), reward=rng.choice([0.0, 0.5, 1.0]))

    return make_case(
        [[EpisodeShape(turns=[turn() for _ in range(rng.randint(1, 3))]) for _ in range(tries)] for _ in range(tasks)],
        seed=seed,
    )


def to_rows(case: Case, stream_T: Tensor) -> Tensor:
    """A packed stream as a host would have it: (rows, columns), NaN where there is nothing."""
    batch = case.batch
    rows = torch.full((batch.sequences, int(batch.length_S.max()) + 2), torch.nan, dtype=stream_T.dtype)
    rows[batch.sequence_T, batch.position_T] = stream_T
    return rows


def padded_of(case: Case, *, credited: bool = True) -> Padded:
    """What a host knows about the case; `credited`: it has advantages already."""
    batch = case.batch
    return Padded(
        mask=to_rows(case, batch.sampled_T.double()) == 1,
        groups=[f"task {group}" for group in batch.group_S.tolist()],
        rewards=to_rows(case, batch.reward_T).nan_to_num(0.0),
        values=_rows(case, batch.value_T),
        old=_rows(case, batch.old_T),
        sampler=_rows(case, batch.mu_T),
        reference=_rows(case, batch.ref_T),
        advantages=_rows(case, batch.advantage_T) if credited else None,
    )


def part_of(padded: Padded, rows: Sequence[int]) -> Padded:
    """Some rows, as a micro-batch of them."""
    chosen = torch.tensor(rows)

    def cut(stream: Tensor | None) -> Tensor | None:
        return None if stream is None else stream[chosen]

    return Padded(
        mask=padded.mask[chosen],
        old=cut(padded.old),
        sampler=cut(padded.sampler),
        reference=cut(padded.reference),
        advantages=cut(padded.advantages),
    )


def host_tensors(seed: int = 0, *, rows: int = 4, columns: int = 12) -> dict[str, Tensor]:
    """Tensors of a loss call in single precision: several turns per row, ratios past the clip, right padding."""
    noise = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=noise) < 0.7
    mask[:, 0], mask[1, -4:] = True, False
    old = -torch.rand(rows, columns, generator=noise) * 3
    return {
        "mask": mask,
        "old": old,
        "log_probs": (old + torch.randn(rows, columns, generator=noise) * 0.3).requires_grad_(),
        "advantages": torch.randn(rows, 1, generator=noise).expand(rows, columns) * mask,
        "reference": old + torch.randn(rows, columns, generator=noise) * 0.2,
    }


def _rows(case: Case, stream_T: Tensor | None) -> Tensor | None:
    return None if stream_T is None else to_rows(case, stream_T)
