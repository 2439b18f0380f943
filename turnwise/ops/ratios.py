"""Importance ratios: how much more likely is this token, turn or sequence now than when it was sampled."""

from typing import Literal

import torch
from torch import Tensor

from turnwise.batch import TokenBatch
from turnwise.ops.facts import Need, Trait, declares, warns
from turnwise.ops.segments import segment_mean, segment_sum, spread

Against = Literal["old", "mu"]
"""The denominator: `old`, the trainer's own log-probs before the first update, or `mu`, the sampler's."""
Pooling = Literal["mean", "sum"]
"""`mean` of logs is the geometric mean of the ratios, `sum` their product."""
Gradient = Literal["flow", "straight-through"]

LOG_CLAMP = 20.0
"""exp(±20) is far beyond any clip bound and safe from overflow."""


@declares(Need.OLD, against="old")
@declares(Need.SAMPLER, against="mu")
def token_ratio(batch: TokenBatch, logprob_T: Tensor, *, against: Against = "old") -> Tensor:
    """One ratio per token.

        w_t = π(y_t) / π_old(y_t)

    PPO (1707.06347).
    """
    return log_ratio(batch, logprob_T, against).exp()


@declares(Need.OLD, against="old")
@declares(Need.SAMPLER, against="mu")
@declares(Trait.PER_TURN)
@warns(
    lambda options: options["pooling"] == "sum",
    "pooling=sum multiplies token ratios, so the clip binds after a few tokens; mean is usual",
)
def turn_ratio(
    batch: TokenBatch,
    logprob_T: Tensor,
    *,
    against: Against = "old",
    pooling: Pooling = "mean",
    gradient: Gradient = "flow",
) -> Tensor:
    """One ratio per turn, shared by its tokens.

        w_k = [ π(y^k) / π_old(y^k) ]^(1/n_k) = exp( (1/n_k) Σ_{t in k} log w_t )

    ST-PPO's turn-level ratio (2511.20718). The gradient flows through the mean, which spreads a turn's advantage evenly
    over its tokens (their Lemma 4.1). `straight-through` gives w_k · π_t / sg[π_t] instead; `sum` drops the 1/n_k.
    """
    return _pooled(batch, logprob_T, batch.turn_T, batch.turns, against, pooling, gradient)


@declares(Need.OLD, against="old")
@declares(Need.SAMPLER, against="mu")
@declares(Trait.PER_SEQUENCE)
@warns(
    lambda options: options["pooling"] == "sum",
    "pooling=sum multiplies token ratios, so the clip binds after a few tokens; mean is usual",
)
def sequence_ratio(
    batch: TokenBatch,
    logprob_T: Tensor,
    *,
    against: Against = "old",
    pooling: Pooling = "mean",
    gradient: Gradient = "flow",
) -> Tensor:
    """One ratio per sequence, over its sampled tokens.

        s_i = exp( (1/n_i) Σ_{t in i} log w_t )

    GSPO (2507.18071); `straight-through` is its token form s_i · π_t / sg[π_t].
    """
    segment_T = torch.where(batch.sampled_T, batch.sequence_T, -1)
    return _pooled(batch, logprob_T, segment_T, batch.sequences, against, pooling, gradient)


def log_ratio(batch: TokenBatch, logprob_T: Tensor, against: Against) -> Tensor:
    """log π(y_t) − log π_old(y_t), clamped to ±20; 0 on environment tokens."""
    base_T = batch.old_T if against == "old" else batch.mu_T
    if base_T is None:
        made_by = "score the batch with the trainer first" if against == "old" else "the sampler must return log-probs"
        raise ValueError(f"the ratio is taken against {against!r}, which is not assigned; {made_by}")
    batch.require_finite(f"log-prob {against!r}", base_T)
    return torch.where(batch.sampled_T, logprob_T - base_T, 0).clamp(-LOG_CLAMP, LOG_CLAMP)


def _pooled(
    batch: TokenBatch,
    logprob_T: Tensor,
    segment_T: Tensor,
    count: int,
    against: Against,
    pooling: Pooling,
    gradient: Gradient,
) -> Tensor:
    pool = segment_mean if pooling == "mean" else segment_sum
    log_T = log_ratio(batch, logprob_T, against)
    pooled = pool(log_T, segment_T, count).clamp(-LOG_CLAMP, LOG_CLAMP)
    ratio_T = spread(pooled, segment_T).exp()
    if gradient == "flow":
        return ratio_T
    return ratio_T.detach() * (log_T - log_T.detach()).exp()


RATIOS = {"token": token_ratio, "turn": turn_ratio, "sequence": sequence_ratio}
