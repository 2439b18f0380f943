"""Surrogate objectives, to be maximised. Each also returns its value without the clip."""

import torch
from torch import Tensor

from turnwise.batch import Scores, TokenBatch
from turnwise.ops.chains import chain
from turnwise.ops.facts import Need, Trait, declares, refuses
from turnwise.ops.group_losses import GROUP_LOSSES
from turnwise.ops.pair_losses import PAIR_LOSSES
from turnwise.ops.parameters import AtLeastOne, LowerClip, NonNegative, Positive
from turnwise.ops.terms import Ratios, Terms


@declares(Need.ADVANTAGE, Need.RATIO, Trait.CLIPS, Trait.THROUGH_RATIO, Trait.FOLLOWS_ADVANTAGE)
@refuses(
    lambda options: options["dual"] is not None and options["dual"] <= 1 + options["high"],
    "dual={dual} must be above 1 + high, with high={high}; 3 is usual",
)
def ppo_clip(
    batch: TokenBatch,
    scores: Scores,
    ratios: Ratios,
    *,
    low: LowerClip = 0.2,
    high: Positive = 0.2,
    dual: AtLeastOne | None = None,
) -> Terms:
    """PPO's pessimistic clip.

        J_t = min( w A_t , clip(w, 1−low, 1+high) A_t )
        dual, A_t < 0:  J_t = max( J_t , dual · A_t )

    PPO (1707.06347); dual clip (1912.09729); unequal bounds are DAPO's clip-higher (2503.14476). Clipping is decided
    per token even when w is shared by a turn, because A_t may change sign inside it.
    """
    ratio_T, advantage_T = ratios.weight_T, advantage_of(batch)
    clipped_T = _outside(ratio_T, advantage_T, low, high)
    unclipped_T = ratio_T * advantage_T
    objective_T = torch.minimum(unclipped_T, ratio_T.clamp(1 - low, 1 + high) * advantage_T)
    if dual is not None:
        floor_T = torch.where(advantage_T < 0, dual * advantage_T, -torch.inf)
        clipped_T = clipped_T | (unclipped_T < floor_T)
        objective_T = torch.maximum(objective_T, floor_T)
    return Terms(objective=objective_T, unclipped=unclipped_T, clipped=clipped_T)


@declares(Need.ADVANTAGE, Need.RATIO, Need.OLD, Trait.CLIPS, Trait.FOLLOWS_ADVANTAGE)
def decoupled_mask(
    batch: TokenBatch,
    scores: Scores,
    ratios: Ratios,
    *,
    low: LowerClip = 0.2,
    high: Positive = 0.27,
    cap: AtLeastOne = 5.0,
) -> Terms:
    """Weigh by one ratio, mask by another.

        J_t = M_t · sg[ min(w, cap) ] · A_t · log π_t
        M_t = 0 where (A_t > 0 and π/π_old > 1+high) or (A_t < 0 and π/π_old < 1−low), else 1

    MiniRL (2512.01374): w = π/μ carries sampler mismatch and staleness, π/π_old decides. The gradient flows through
    log π only.
    """
    advantage_T = advantage_of(batch)
    weight_T = ratios.weight_T.detach().clamp_max(cap) * advantage_T
    clipped_T = _outside(ratios.against_old(), advantage_T, low, high)
    unclipped_T = weight_T * scores.logprob_T
    return Terms(objective=torch.where(clipped_T, 0, unclipped_T), unclipped=unclipped_T, clipped=clipped_T)


@declares(Need.ADVANTAGE, Need.RATIO, Trait.CLIPS, Trait.FOLLOWS_ADVANTAGE)
def cispo(batch: TokenBatch, scores: Scores, ratios: Ratios, *, low: LowerClip = 1.0, high: Positive = 0.28) -> Terms:
    """Clip the weight, keep every token's gradient.

        J_t = sg[ clip(w, 1−low, 1+high) ] · A_t · log π_t

    CISPO of MiniMax-M1 (2506.13585); that only the upper bound binds there is from memory, hence low = 1.
    """
    ratio_T, advantage_T = ratios.weight_T.detach(), advantage_of(batch)
    clipped_T = (ratio_T < 1 - low) | (ratio_T > 1 + high)
    return Terms(
        objective=ratio_T.clamp(1 - low, 1 + high) * advantage_T * scores.logprob_T,
        unclipped=ratio_T * advantage_T * scores.logprob_T,
        clipped=clipped_T,
    )


@declares(Need.ADVANTAGE, Trait.FOLLOWS_ADVANTAGE, Trait.FIRST_UPDATE_ONLY)
def reinforce(batch: TokenBatch, scores: Scores, ratios: Ratios) -> Terms:
    """The plain policy gradient, right only for data of the present policy.

    J_t = A_t · log π_t
    """
    return Terms(objective=advantage_of(batch) * scores.logprob_T)


@declares(Need.ADVANTAGE, Need.OLD, Need.VOCABULARY_MEAN)
def rover(batch: TokenBatch, scores: Scores, ratios: Ratios, *, rho: Positive = 1.0, beta: NonNegative = 1.0) -> Terms:
    """Fit the value of the uniformly random policy: no ratio, no clip.

        J_t = −( Q_t − sg[ A_t + beta · Q'_t ] )²
        Q_t = rho ( log π_t − log π_old,t )
        Q'_t = the mean of Q over the vocabulary at the next sampled token of the trajectory; 0 at its last one

    ROVER (2509.24981). The gradient is 2 rho (A_t + beta Q'_t − Q_t) ∇log π_t: a policy gradient, a pull back to π_old,
    and Q' = rho ( KL(U ‖ π_old) − KL(U ‖ π) ), which holds π near the uniform distribution U. The theorem is about
    trees, where an action alone decides the next state. Where the environment speaks between turns, the first token of
    the next turn is one sample of the next state, and this is a regularised policy gradient.
    """
    if batch.old_T is None or batch.old_uniform_T is None or scores.uniform_T is None:
        raise ValueError("rover needs old_T, old_uniform_T and Scores.uniform_T; score the batch with uniform=True")
    links = chain(batch)
    value_M = rho * (links.pick(scores.logprob_T) - links.pick(batch.old_T))
    mean_M = rho * (links.pick(scores.uniform_T) - links.pick(batch.old_uniform_T))
    target_M = links.pick(advantage_of(batch)) + beta * torch.where(links.ends_M, 0, mean_M.roll(-1))
    return Terms(objective=links.put(-(value_M - target_M.detach()).square()))


@declares()  # that it needs nothing
def negative_log_likelihood(batch: TokenBatch, scores: Scores, ratios: Ratios) -> Terms:
    """Imitate the sampled tokens, whatever they earned.

    J_t = log π_t
    """
    return Terms(objective=scores.logprob_T)


def advantage_of(batch: TokenBatch) -> Tensor:
    """The advantage of every token; ValueError if the batch has none."""
    if batch.advantage_T is None:
        raise ValueError("the batch has no advantages; run compute_credit with a row that has an advantage")
    return batch.advantage_T


def _outside(ratio_T: Tensor, advantage_T: Tensor, low: float, high: float) -> Tensor:
    """Tokens whose ratio is past the bound in the direction the advantage pushes it."""
    return ((ratio_T > 1 + high) & (advantage_T > 0)) | ((ratio_T < 1 - low) & (advantage_T < 0))


SURROGATES = {
    "ppo-clip": ppo_clip,
    "mask": decoupled_mask,
    "cispo": cispo,
    "reinforce": reinforce,
    "rover": rover,
    "nll": negative_log_likelihood,
    **PAIR_LOSSES,
    **GROUP_LOSSES,
}
