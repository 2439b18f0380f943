"""Units of answers whose log-ratios are given token by token: the numbers that losses on comparisons are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.algorithm import Algorithm, Loss, Need, compute_credit, compute_loss
from turnwise.batch import Scores, TokenBatch
from turnwise.rollout.packing import pack
from turnwise.types import Group, StopReason, Trajectory, Turn


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One member: the log-ratio of every token, turn by turn; what it earned; and the rest where a loss reads it."""

    moved: Sequence[Sequence[float]]
    reward: float = 0.0
    wins: float | None = None
    kl: Sequence[Sequence[float]] | None = None
    """KL_t(π_ref ‖ π), as many numbers as `moved`."""
    known: bool = True
    """Whether its sampler is known; not of a reference answer."""


Units = Sequence[Sequence[Answer]]
PAIR = [Answer(moved=[[0.5, 0.3]], reward=1.0), Answer(moved=[[-0.2]], reward=0.0)]
"""Δ_w = 0.8, Δ_l = −0.2."""


def groups_of(units: Units) -> list[Group]:
    """The answers as trajectories; every turn answers one token of the user."""
    return [
        Group(
            id=f"u{number}",
            trajectories=[_trajectory(answer, f"u{number}/{place}") for place, answer in enumerate(unit)],
        )
        for number, unit in enumerate(units)
    ]


def packed(units: Units) -> tuple[TokenBatch, Tensor, Tensor | None]:
    """The batch, scored by its sampler and a reference, the log-probs now, and the KL of every token."""
    batch = pack(groups_of(units), dtype=torch.float64)
    base_T = torch.where(batch.sampled_T, -1.0 - 0.1 * torch.arange(batch.tokens, dtype=torch.float64), torch.nan)
    moved_T = _on_sampled(batch, [each for unit in units for answer in unit for turn in answer.moved for each in turn])
    batch = batch.with_(old_T=base_T, ref_T=base_T)
    kls = [answer.kl for unit in units for answer in unit]
    if None in kls:
        return batch, base_T + moved_T, None
    kl_T = _on_sampled(batch, [each for kl in kls if kl is not None for turn in kl for each in turn])
    return batch, base_T + moved_T, kl_T


def loss_of_units(row: Algorithm, units: Units) -> tuple[Loss, Tensor, Tensor | None]:
    """The loss of a row, and its gradient by every sampled token's log-prob and by its KL."""
    batch, logprob_T, kl_T = packed(units)
    credited = compute_credit(row, batch)
    assert Need.REFERENCE not in row.needs or credited.ref_T is not None
    logprob_T = logprob_T.requires_grad_()
    kl_T = None if kl_T is None else kl_T.requires_grad_()
    loss = compute_loss(row, credited, Scores(logprob_T=logprob_T, reverse_kl_T=kl_T))
    loss.total.backward()
    assert logprob_T.grad is not None
    sampled_T = batch.sampled_T
    by_kl = None if kl_T is None or kl_T.grad is None else kl_T.grad[sampled_T]
    return loss, logprob_T.grad[sampled_T], by_kl


def _trajectory(answer: Answer, name: str) -> Trajectory:
    turns = [
        Turn(
            prompt_ids=[1],
            sampled_ids=[2] * len(moves),
            logprobs=[-1.0] * len(moves) if answer.known else None,
        )
        for moves in answer.moved
    ]
    turns[-1].reward = answer.reward
    if answer.wins is not None:
        turns[-1].streams = {"wins": [answer.wins]}
    return Trajectory(id=name, turns=turns, stop=StopReason.DONE, terminated=True)


def _on_sampled(batch: TokenBatch, values: Sequence[float]) -> Tensor:
    stream_T = torch.full((batch.tokens,), torch.nan, dtype=torch.float64)
    stream_T[batch.sampled_T] = torch.tensor(values, dtype=torch.float64)
    return stream_T
