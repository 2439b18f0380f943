"""From a scored batch to credit, from credit to the loss: the trainer knows these functions and no algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from turnwise.algorithm.parts import Part, function_of
from turnwise.algorithm.row import Algorithm
from turnwise.algorithm.rules import resolve
from turnwise.batch import Scores, TokenBatch
from turnwise.ops.chains import require_whole_trajectories
from turnwise.ops.clip_bias import bias_coefficients
from turnwise.ops.credit import Credit
from turnwise.ops.diagnostics import TurnTable, turn_table
from turnwise.ops.normalizers import Reduce, alone
from turnwise.ops.scales import StepScale
from turnwise.ops.surrogates import WITHOUT_RATIO, Ratios, Terms
from turnwise.ops.values import valued_tokens
from turnwise.ops.weights import Counts, trajectory_tokens
from turnwise.types import Group


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The loss of one micro-batch. Its numbers and its table add up over micro-batches and ranks."""

    total: Tensor
    """What to call backward on: policy + regularisers + value."""
    policy: Tensor
    regularizers: dict[str, Tensor]
    value: Tensor | None
    bias: Tensor | None
    """J_unclipped − J_clipped, whose gradient is the clipping bias C; None when nothing was clipped."""
    bias_T: Tensor | None
    """∂bias/∂log π_t; None when nothing was clipped."""
    table: TurnTable
    """Diagnostics by turn index."""


def apply_filters(row: Algorithm, groups: Sequence[Group]) -> list[Group]:
    """Leave out what the row's filters leave out; groups without trajectories go too."""
    kept = list(groups)
    for part in row.filters:
        kept = [_call("filters", part, group) for group in kept]
        kept = [group for group in kept if group.trajectories]
    return kept


def compute_credit(row: Algorithm, batch: TokenBatch, *, reduce: Reduce = alone) -> TokenBatch:
    """The batch with rewards transformed and advantage, return and mismatch weight assigned.

    Takes the whole rollout, before it is split; `reduce` sums batch statistics over ranks. Impossible rows are refused,
    and so are a batch that has its credit already and one with a part of a trajectory.
    """
    resolve(row)
    _require_no_credit(batch)
    require_whole_trajectories(batch)
    with torch.no_grad():
        for part in row.reward:
            batch = batch.with_(reward_T=_stream("reward", part, batch, _call("reward", part, batch)))
        credit = _credit(row.advantage, batch)
        advantage_T = _call("normalizer", row.normalizer, batch, credit.advantage_T, reduce)
        advantage_T = _stream("normalizer", row.normalizer, batch, advantage_T)
        batch.require_finite("advantage", advantage_T)
        batch = batch.with_(
            advantage_T=advantage_T, return_T=credit.return_T, mismatch_T=_call("mismatch", row.mismatch, batch)
        )
        return batch.with_(kept_S=trajectory_tokens(batch), credited=True)


def compute_loss(row: Algorithm, batch: TokenBatch, scores: Scores, *, counts: Counts | None = None) -> Loss:
    """The loss of a micro-batch: a weighted sum, so that micro-batches and ranks simply add up.

    `counts` are those of the whole optimiser step, over all micro-batches and ranks; without them this batch is it.
    """
    counts = counts or Counts.of(batch)
    _check_scores(batch, scores)
    scores = _on_sampled(batch, scores)
    weight_T = _call("weights", row.weights, batch, counts)
    ratio_T, terms = _surrogate(row, batch, scores.logprob_T)
    corrected_T = weight_T if batch.mismatch_T is None else weight_T * batch.mismatch_T
    policy = -(corrected_T * terms.objective_T).sum()
    bias, bias_T = _clip_bias(terms, corrected_T, scores.logprob_T)
    regularizers = {
        part.kind: _masked_sum(weight_T, _call("regularizers", part, batch, scores)) for part in row.regularizers
    }
    valued_T = valued_tokens(batch, row.critic.level) if row.critic.level != "none" else None
    value = None if valued_T is None else _value_loss(row, batch, scores, valued_T, counts)
    total = sum(regularizers.values(), policy)
    return Loss(
        total=total if value is None else total + value,
        policy=policy.detach(),
        regularizers={name: penalty.detach() for name, penalty in regularizers.items()},
        value=None if value is None else value.detach(),
        bias=bias,
        bias_T=bias_T,
        table=turn_table(
            batch,
            scores,
            ratio_T=ratio_T.detach(),
            clipped_T=terms.clipped_T,
            valued_T=valued_T,
            bias_T=bias_T,
        ),
    )


def token_ratios(row: Algorithm, batch: TokenBatch, logprob_T: Tensor) -> tuple[Tensor, Tensor]:
    """The ratio of every token as the row takes it, and where its surrogate clips; (1, False) on environment tokens.

    For looking at a batch; the loss itself comes from `compute_loss`.
    """
    _check_shape(batch, logprob_T)
    with torch.no_grad():
        ratio_T, terms = _surrogate(row, batch, _zero_elsewhere(batch, logprob_T))
    return torch.where(batch.sampled_T, ratio_T, 1.0), terms.clipped_T & batch.sampled_T


def make_scale(row: Algorithm) -> StepScale | None:
    """The row's step scale: stateful, one per run; None when steps are taken as they are."""
    return _call("scale", row.scale)


def _call(axis: str, part: Part, *arguments: Any) -> Any:
    return function_of(axis, part.kind)(*arguments, **part.options)


def _require_no_credit(batch: TokenBatch) -> None:
    if batch.credited:
        raise ValueError(
            "this batch has its credit already, and a second compute_credit would transform its rewards again; "
            "give it the packed and scored batch"
        )


def _credit(part: Part, batch: TokenBatch) -> Credit:
    credit = _call("advantage", part, batch)
    if not isinstance(credit, Credit):
        raise ValueError(
            f"advantage {part.kind} returned {type(credit).__name__}; "
            "return turnwise.algorithm.Credit(advantage_T=..., return_T=...)"
        )
    return_T = None if credit.return_T is None else _stream("advantage", part, batch, credit.return_T)
    return Credit(advantage_T=_stream("advantage", part, batch, credit.advantage_T), return_T=return_T)


def _stream(axis: str, part: Part, batch: TokenBatch, values_T: Any) -> Tensor:
    """What a part returned, as a constant: one floating-point number per token, or an error that names the part."""
    if not isinstance(values_T, Tensor) or not values_T.is_floating_point():
        found = values_T.dtype if isinstance(values_T, Tensor) else type(values_T).__name__
        raise ValueError(f"{axis} {part.kind} returned {found}; it must be a tensor of floating-point numbers")
    if values_T.shape != batch.ids_T.shape:
        raise ValueError(
            f"{axis} {part.kind} returned shape {tuple(values_T.shape)}, the batch has {batch.tokens} tokens"
        )
    return values_T.detach()


def _check_scores(batch: TokenBatch, scores: Scores) -> None:
    _check_shape(batch, scores.logprob_T)
    batch.require_finite("log-prob", scores.logprob_T)


def _check_shape(batch: TokenBatch, logprob_T: Tensor) -> None:
    if batch.advantage_T is None:
        raise ValueError("the batch has no advantages; run compute_credit first")
    if logprob_T.shape != batch.ids_T.shape:
        raise ValueError(
            f"log-probs have shape {tuple(logprob_T.shape)} but the batch has {batch.tokens} tokens; "
            "entry t must belong to token t itself"
        )


def _on_sampled(batch: TokenBatch, scores: Scores) -> Scores:
    """Environment tokens never enter: whatever the learner wrote there becomes a constant, in value and in gradient."""
    streams: dict[str, Tensor | None] = {item.name: getattr(scores, item.name) for item in fields(scores)}
    return replace(scores, **{name: _zero_elsewhere(batch, x) for name, x in streams.items() if x is not None})


def _zero_elsewhere(batch: TokenBatch, stream: Tensor) -> Tensor:
    mask_T = batch.sampled_T
    return torch.where(mask_T if stream.dim() == 1 else mask_T[:, None], stream, 0)


def _surrogate(row: Algorithm, batch: TokenBatch, logprob_T: Tensor) -> tuple[Tensor, Terms]:
    ratio_T = _ratio(row, batch, logprob_T)

    def against_old() -> Tensor:
        if row.ratio.options.get("against", "old") == "old":
            return ratio_T
        decision = row.ratio.model_copy(update={"options": {**row.ratio.options, "against": "old"}})
        return _call("ratio", decision, batch, logprob_T)

    ratios = Ratios(weight_T=ratio_T, against_old=against_old)
    return ratio_T, _call("surrogate", row.surrogate, ratios, logprob_T, batch.advantage_T)


def _ratio(row: Algorithm, batch: TokenBatch, logprob_T: Tensor) -> Tensor:
    base_T = batch.mu_T if row.ratio.options.get("against") == "mu" else batch.old_T
    if base_T is None and row.surrogate.kind in WITHOUT_RATIO:
        return torch.ones_like(logprob_T)  # such a row takes its data for the present policy's
    return _call("ratio", row.ratio, batch, logprob_T)


def _clip_bias(terms: Terms, weight_T: Tensor, logprob_T: Tensor) -> tuple[Tensor | None, Tensor | None]:
    active_T = terms.clipped_T & (weight_T != 0)
    if not bool(active_T.any()) or not logprob_T.requires_grad:
        return None, None
    bias = (weight_T * (terms.unclipped_T - terms.objective_T)).sum()
    return bias, bias_coefficients(bias, logprob_T)


def _masked_sum(weight_T: Tensor, penalty_T: Tensor) -> Tensor:
    return (weight_T * torch.where(weight_T != 0, penalty_T, 0)).sum()


def _value_loss(row: Algorithm, batch: TokenBatch, scores: Scores, valued_T: Tensor, counts: Counts) -> Tensor:
    """The critic's mean loss over tokens or, at their first token, over turns; times its coefficient."""
    loss_T: Tensor = _call("value_loss", row.critic.loss, batch, scores)
    count = counts.turns if row.critic.level == "turn" else counts.tokens
    return row.critic.coef * _masked_sum(valued_T.to(loss_T) / max(count, 1), loss_T)
