"""From a scored batch to credit, from credit to the loss. The trainer calls these for every algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from turnwise.algorithm import axes
from turnwise.algorithm.parts import Part, bind, is_silent
from turnwise.algorithm.row import Algorithm
from turnwise.algorithm.rules import resolve
from turnwise.batch import Scores, TokenBatch
from turnwise.ops.chains import require_whole_trajectories
from turnwise.ops.clip_bias import bias_coefficients
from turnwise.ops.credit import Credit
from turnwise.ops.diagnostics import turn_table
from turnwise.ops.facts import Need, Trait
from turnwise.ops.step_scale import StepScale
from turnwise.ops.terms import Loss, Ratios, Terms
from turnwise.ops.values import valued_tokens
from turnwise.ops.weights import Counts, token_mean, trajectory_tokens
from turnwise.ranks import Reduce, alone
from turnwise.types import Group


def apply_filters(row: Algorithm, groups: Sequence[Group]) -> list[Group]:
    """Apply the row's filters and drop empty groups."""
    kept = list(groups)
    for part in row.filters:
        kept = [bind(axes.FILTERS, part)(group) for group in kept]
        kept = [group for group in kept if group.trajectories]
    return kept


def compute_credit(row: Algorithm, batch: TokenBatch, *, reduce: Reduce = alone) -> TokenBatch:
    """The batch with rewards transformed and advantage, return, mismatch weight and units assigned.

    Takes the whole rollout, before it is split; `reduce` sums batch statistics over ranks. Raises ValueError for
    impossible rows, batches that already have credit, and batches with only part of a trajectory.
    """
    resolve(row)
    _require_no_credit(batch)
    require_whole_trajectories(batch)
    if Need.WHOLE_GROUPS in row.needs:
        batch = batch.with_(unit_S=batch.group_S)
    if not batch.tokens:
        return _empty(row, batch, reduce)
    with torch.no_grad():
        for part in row.reward:
            batch = batch.with_(reward_T=_stream("reward", part, batch, bind(axes.REWARD, part)(batch)))
        credit = _credit(row.advantage, batch)
        if credit is not None:
            advantage_T = bind(axes.NORMALIZER, row.normalizer)(batch, credit.advantage_T, reduce)
            advantage_T = _stream("normalizer", row.normalizer, batch, advantage_T)
            batch.require_finite("advantage", advantage_T)
            batch = batch.with_(advantage_T=advantage_T, return_T=credit.return_T)
        batch = batch.with_(mismatch_T=bind(axes.MISMATCH, row.mismatch)(batch))
        return batch.with_(kept_S=trajectory_tokens(batch), credited=True)


def _empty(row: Algorithm, batch: TokenBatch, reduce: Reduce) -> TokenBatch:
    """The credit of a rank without data: only the normaliser runs, because it sums over ranks."""
    nothing_T = torch.zeros_like(batch.reward_T)
    if Trait.NEUTRAL not in row.facts("advantage"):  # the other ranks have credit, whether or not it is needed
        advantage_T = bind(axes.NORMALIZER, row.normalizer)(batch, nothing_T, reduce)
        batch = batch.with_(advantage_T=advantage_T, return_T=nothing_T)
    return batch.with_(kept_S=trajectory_tokens(batch), credited=True)


def compute_loss(row: Algorithm, batch: TokenBatch, scores: Scores, *, counts: Counts | None = None) -> Loss:
    """The loss of a micro-batch: a weighted sum, so micro-batches and ranks add up.

    `counts` cover the whole optimiser step, over all micro-batches and ranks; the default is this batch alone.
    """
    counts = counts or Counts.of(batch)
    _check_shape(batch, scores.logprob_T)
    if not batch.tokens:
        return _nothing(row, batch, scores)
    batch.require_finite("log-prob", scores.logprob_T)
    scores = _on_sampled(batch, scores)
    weight_T = bind(axes.WEIGHTS, row.weights)(batch, counts)
    ratio_T, terms = _surrogate(row, batch, scores)
    corrected = terms.weigh(batch, weight_T if batch.mismatch_T is None else weight_T * batch.mismatch_T)
    policy = -(corrected * terms.objective).sum()
    bias, bias_T = _clip_bias(terms, corrected, scores.logprob_T)
    regularizers = {
        part.kind: _penalty(batch, weight_T, bind(axes.REGULARIZERS, part)(batch, scores)) for part in row.penalties
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
            clipped_T=terms.clipped_tokens(batch),
            valued_T=valued_T,
            bias_T=bias_T,
        ),
        measures={name: (corrected * values).sum().detach() for name, values in terms.measures.items()},
    )


def compute_text_loss(
    row: Algorithm, batch: TokenBatch, scores: Scores, *, counts: Counts | None = None
) -> dict[str, Tensor]:
    """The row's losses on text that the policy did not play, by kind: means over the tokens of an optimiser step.

    `counts` are those of the text alone, so what was played does not change its weight.
    """
    batch.require_finite("log-prob of a text", scores.logprob_T)
    weight_T, scores = token_mean(batch, counts or Counts.of(batch)), _on_sampled(batch, scores)
    return {
        part.kind: _penalty(batch, weight_T, bind(axes.REGULARIZERS, part)(batch, scores)) for part in row.text_losses
    }


def _nothing(row: Algorithm, batch: TokenBatch, scores: Scores) -> Loss:
    """The loss of a rank without data in this step."""
    zero = scores.logprob_T.sum()
    table = turn_table(
        batch,
        scores,
        ratio_T=torch.ones_like(scores.logprob_T),
        clipped_T=batch.sampled_T,
        valued_T=batch.sampled_T if row.needs_critic else None,
        bias_T=None,
    )
    return Loss(
        total=zero,
        policy=zero.detach(),
        regularizers={part.kind: zero.detach() for part in row.penalties},
        value=zero.detach() if row.needs_critic else None,
        bias=None,
        bias_T=None,
        table=table,
    )


def token_ratios(row: Algorithm, batch: TokenBatch, logprob_T: Tensor) -> tuple[Tensor, Tensor]:
    """The ratio of every token as the row takes it, and where its surrogate clips; (1, False) on environment tokens.

    For inspection; `compute_loss` computes the loss.
    """
    _check_shape(batch, logprob_T)
    scores = Scores(logprob_T=_zero_elsewhere(batch, logprob_T))
    may_clip = Trait.CLIPS in row.facts("surrogate") or is_silent("surrogate", row.surrogate)
    with torch.no_grad():
        if not may_clip:  # its terms may need more than log-probs
            return torch.where(batch.sampled_T, _ratio(row, batch, scores.logprob_T), 1.0), torch.zeros_like(
                batch.sampled_T
            )
        ratio_T, terms = _surrogate(row, batch, scores)
    return torch.where(batch.sampled_T, ratio_T, 1.0), terms.clipped_tokens(batch) & batch.sampled_T


def make_scale(row: Algorithm) -> StepScale | None:
    """The row's step scale: stateful, one per run; None if steps are not scaled."""
    return bind(axes.SCALE, row.scale)()


def _require_no_credit(batch: TokenBatch) -> None:
    if batch.credited:
        raise ValueError(
            "this batch already has credit, and a second compute_credit would transform its rewards again; "
            "pass the packed and scored batch"
        )


def _credit(part: Part, batch: TokenBatch) -> Credit | None:
    credit: Any = bind(axes.ADVANTAGE, part)(batch)
    if credit is None:
        return None
    if not isinstance(credit, Credit):
        raise ValueError(
            f"advantage {part.kind} returned {type(credit).__name__}; "
            "return turnwise.algorithm.Credit(advantage_T=..., return_T=...)"
        )
    return_T = None if credit.return_T is None else _stream("advantage", part, batch, credit.return_T)
    return Credit(advantage_T=_stream("advantage", part, batch, credit.advantage_T), return_T=return_T)


def _stream(axis: str, part: Part, batch: TokenBatch, values_T: Any) -> Tensor:
    """A part's result as a constant: one floating-point number per token, or an error that names the part."""
    if not isinstance(values_T, Tensor) or not values_T.is_floating_point():
        found = values_T.dtype if isinstance(values_T, Tensor) else type(values_T).__name__
        raise ValueError(f"{axis} {part.kind} returned {found}; it must be a tensor of floating-point numbers")
    if values_T.shape != batch.ids_T.shape:
        raise ValueError(
            f"{axis} {part.kind} returned shape {tuple(values_T.shape)}, the batch has {batch.tokens} tokens"
        )
    return values_T.detach()


def _check_shape(batch: TokenBatch, logprob_T: Tensor) -> None:
    if not batch.credited and batch.advantage_T is None:
        raise ValueError("the batch has no credit; run compute_credit first")
    if logprob_T.shape != batch.ids_T.shape:
        raise ValueError(
            f"log-probs have shape {tuple(logprob_T.shape)} but the batch has {batch.tokens} tokens; "
            "entry t must belong to token t itself"
        )


def _on_sampled(batch: TokenBatch, scores: Scores) -> Scores:
    """Replace the scores of environment tokens with constants, in value and in gradient."""
    streams: dict[str, Tensor | None] = {item.name: getattr(scores, item.name) for item in fields(scores)}
    return replace(scores, **{name: _zero_elsewhere(batch, x) for name, x in streams.items() if x is not None})


def _zero_elsewhere(batch: TokenBatch, stream: Tensor) -> Tensor:
    mask_T = batch.sampled_T
    return torch.where(mask_T if stream.dim() == 1 else mask_T[:, None], stream, 0)


def _surrogate(row: Algorithm, batch: TokenBatch, scores: Scores) -> tuple[Tensor, Terms]:
    ratio_T = _ratio(row, batch, scores.logprob_T)

    def against_old() -> Tensor:
        if Need.OLD in row.facts("ratio"):
            return ratio_T
        decision = row.ratio.model_copy(update={"options": {**row.ratio.options, "against": "old"}})
        return bind(axes.RATIO, decision)(batch, scores.logprob_T)

    ratios = Ratios(weight_T=ratio_T, against_old=against_old)
    return ratio_T, bind(axes.SURROGATE, row.surrogate)(batch, scores, ratios)


def _ratio(row: Algorithm, batch: TokenBatch, logprob_T: Tensor) -> Tensor:
    base_T = batch.mu_T if Need.SAMPLER in row.facts("ratio") else batch.old_T
    if base_T is None and Need.RATIO not in row.facts("surrogate"):
        return torch.ones_like(logprob_T)  # such a row assumes on-policy data
    return bind(axes.RATIO, row.ratio)(batch, logprob_T)


def _clip_bias(terms: Terms, weight: Tensor, logprob_T: Tensor) -> tuple[Tensor | None, Tensor | None]:
    if terms.clipped is None or terms.unclipped is None or not logprob_T.requires_grad:
        return None, None
    if not bool((terms.clipped & (weight != 0)).any()):
        return None, None
    bias = (weight * (terms.unclipped - terms.objective)).sum()
    return bias, bias_coefficients(bias, logprob_T)


def _penalty(batch: TokenBatch, weight_T: Tensor, penalty: Tensor | Terms) -> Tensor:
    terms = penalty if isinstance(penalty, Terms) else Terms(objective=penalty)
    return _masked_sum(terms.weigh(batch, weight_T), terms.objective)


def _masked_sum(weight: Tensor, penalty: Tensor) -> Tensor:
    return (weight * torch.where(weight != 0, penalty, 0)).sum()


def _value_loss(row: Algorithm, batch: TokenBatch, scores: Scores, valued_T: Tensor, counts: Counts) -> Tensor:
    """The critic's mean loss over tokens, or over turns at their first token, times its coefficient."""
    loss_T = bind(axes.VALUE_LOSS, row.critic.loss)(batch, scores)
    count = counts.turns if row.critic.level == "turn" else counts.tokens
    return row.critic.coef * _masked_sum(valued_T.to(loss_T) / max(count, 1), loss_T)
