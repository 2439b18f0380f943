"""Learning metrics: of one optimiser step, and of all steps on a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Literal

from turnwise.algorithm import Algorithm, Loss
from turnwise.batch import Moments, TokenBatch
from turnwise.learn.run_history import history_metrics
from turnwise.ops.diagnostics import TurnTable
from turnwise.ops.step_scale import Scale
from turnwise.ops.values import valued_tokens
from turnwise.ranks import Ranks

_EQUAL = 1e-6
"""A variance of returns below this counts as zero: dividing by it would say nothing about the critic."""
Reading = tuple[dict[str, float], TurnTable]
"""The parts of a micro-batch's loss as plain numbers, and its diagnostics."""


@dataclass(kw_only=True)
class Update:
    """What one optimiser step did."""

    loss: dict[str, float]
    table: TurnTable
    gradient_norm: float
    critic_gradient_norm: float | None
    scale: Scale | None
    taken: bool


@dataclass(kw_only=True)
class Report:
    """One step's learning: numbers for `metrics.jsonl`, and one row per turn index for `turns.jsonl`."""

    metrics: dict[str, float] = field(default_factory=dict[str, float])
    turns: list[dict[str, float]] = field(default_factory=list[dict[str, float]])


def report_of(row: Algorithm, batch: TokenBatch, updates: Sequence[Update], *, rate: float, ranks: Ranks) -> Report:
    """The report of all optimiser steps on one batch, over all ranks."""
    table = reduce(add, (update.table for update in updates))
    metrics = {_metric(name): _mean([update.loss[name] for update in updates]) for name in updates[0].loss}
    del metrics["loss/total"]
    norms = [update.gradient_norm for update in updates]
    shares = ranks.gather((batch.sequences, batch.tokens, _errors_of(batch, row.critic.level)))
    metrics |= table.totals() | {
        "train/updates": float(len(updates)),
        "train/skipped": float(sum(not update.taken for update in updates)),
        "train/gradient_norm": _mean(norms),
        "train/gradient_norm_max": max(norms, key=badness),
        "train/learning_rate": rate,
        "train/sequences": float(sum(sequences for sequences, _, _ in shares)),
        "train/tokens": float(sum(tokens for _, tokens, _ in shares)),
    }
    if "loss/sampler_kl" in (first := updates[0].table.totals()):
        metrics["train/sampler_gap"] = first["loss/sampler_kl"]
    critic_norms = [update.critic_gradient_norm for update in updates if update.critic_gradient_norm is not None]
    if critic_norms:
        metrics["train/critic_gradient_norm"] = _mean(critic_norms)
        metrics["train/explained_variance"] = _explained([errors for _, _, errors in shares])
    scales = [update.scale for update in updates if update.scale is not None]
    if scales:
        metrics["train/scale"] = _mean([scale.value for scale in scales])
        metrics["train/scale_min"] = min(scale.value for scale in scales)
        metrics[scales[0].metric] = _mean([scale.measured for scale in scales])
    return Report(metrics=metrics | history_metrics(batch.history), turns=table.rows())


def reading_of(loss: Loss) -> Reading:
    """What is reported of a micro-batch's loss."""
    numbers = {"total": float(loss.total.detach()), "policy": float(loss.policy)}
    numbers |= {f"{kind}_term": float(penalty) for kind, penalty in loss.regularizers.items()}
    numbers |= {name: float(value) for name, value in loss.measures.items()}
    return numbers if loss.value is None else {**numbers, "value": float(loss.value)}, loss.table


def summed(readings: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The sum of every number; a rank without data has no measures."""
    names = dict.fromkeys(name for numbers in readings for name in numbers)
    return {name: sum(numbers.get(name, 0.0) for numbers in readings) for name in names}


def explained_variance(batch: TokenBatch, level: Literal["none", "token", "turn"] = "token") -> float:
    """1 − Var(return − value) / Var(return) where a critic of this level is trained: 1 is perfect, 0 knows the mean."""
    return _explained([_errors_of(batch, level)])


def _errors_of(batch: TokenBatch, level: Literal["none", "token", "turn"]) -> tuple[Moments, Moments]:
    """The returns where a critic is trained, and its errors there."""
    if batch.value_T is None or batch.return_T is None or level == "none":
        return Moments(), Moments()
    valued_T = valued_tokens(batch, level)
    returns = batch.return_T[valued_T].double()
    return Moments.of(returns), Moments.of(returns - batch.value_T[valued_T].double())


def _explained(shares: Sequence[tuple[Moments, Moments]]) -> float:
    spread = Moments.pooled([returns for returns, _ in shares]).variance
    return 1 - Moments.pooled([errors for _, errors in shares]).variance / spread if spread > _EQUAL else 0.0


def badness(norm: float) -> tuple[bool, float]:
    """Sort key for norms, worst last: NaN is the worst."""
    return norm != norm, norm


def _metric(name: str) -> str:
    """Measures of a surrogate are named in full; the rest is part of the loss."""
    return name if "/" in name else f"loss/{name}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
