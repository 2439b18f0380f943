"""Surrogate objectives per token, to be maximised. Each also says what it would have been without its clip."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.ops.parameters import AtLeastOne, LowerClip, Positive


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """The ratio that weighs a term; and, for decoupled rules that ask for it, the one against the old policy."""

    weight_T: Tensor
    against_old: Callable[[], Tensor]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """`clipped_T` marks the tokens whose gradient the clip removed or bent; there `unclipped_T` differs."""

    objective_T: Tensor
    unclipped_T: Tensor
    clipped_T: Tensor


def ppo_clip(
    ratios: Ratios,
    logprob_T: Tensor,
    advantage_T: Tensor,
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
    ratio_T = ratios.weight_T
    clipped_T = _outside(ratio_T, advantage_T, low, high)
    unclipped_T = ratio_T * advantage_T
    objective_T = torch.minimum(unclipped_T, ratio_T.clamp(1 - low, 1 + high) * advantage_T)
    if dual is not None:
        floor_T = torch.where(advantage_T < 0, dual * advantage_T, -torch.inf)
        clipped_T = clipped_T | (unclipped_T < floor_T)
        objective_T = torch.maximum(objective_T, floor_T)
    return Terms(objective_T=objective_T, unclipped_T=unclipped_T, clipped_T=clipped_T)


def decoupled_mask(
    ratios: Ratios,
    logprob_T: Tensor,
    advantage_T: Tensor,
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
    weight_T = ratios.weight_T.detach().clamp_max(cap) * advantage_T
    clipped_T = _outside(ratios.against_old(), advantage_T, low, high)
    unclipped_T = weight_T * logprob_T
    return Terms(objective_T=torch.where(clipped_T, 0, unclipped_T), unclipped_T=unclipped_T, clipped_T=clipped_T)


def cispo(
    ratios: Ratios, logprob_T: Tensor, advantage_T: Tensor, *, low: LowerClip = 1.0, high: Positive = 0.28
) -> Terms:
    """Clip the weight, keep every token's gradient.

        J_t = sg[ clip(w, 1−low, 1+high) ] · A_t · log π_t

    CISPO of MiniMax-M1 (2506.13585); that only the upper bound binds there is from memory, hence low = 1.
    """
    ratio_T = ratios.weight_T.detach()
    clipped_T = (ratio_T < 1 - low) | (ratio_T > 1 + high)
    return Terms(
        objective_T=ratio_T.clamp(1 - low, 1 + high) * advantage_T * logprob_T,
        unclipped_T=ratio_T * advantage_T * logprob_T,
        clipped_T=clipped_T,
    )


def reinforce(ratios: Ratios, logprob_T: Tensor, advantage_T: Tensor) -> Terms:
    """The plain policy gradient, right only for data of the present policy.

    J_t = A_t · log π_t
    """
    return _plain(advantage_T * logprob_T)


def negative_log_likelihood(ratios: Ratios, logprob_T: Tensor, advantage_T: Tensor) -> Terms:
    """Imitate the sampled tokens, whatever they earned.

    J_t = log π_t
    """
    return _plain(logprob_T)


def _plain(objective_T: Tensor) -> Terms:
    never_T = torch.zeros_like(objective_T, dtype=torch.bool)
    return Terms(objective_T=objective_T, unclipped_T=objective_T, clipped_T=never_T)


def _outside(ratio_T: Tensor, advantage_T: Tensor, low: float, high: float) -> Tensor:
    """Tokens pushed further in the direction in which they have already gone too far."""
    return ((ratio_T > 1 + high) & (advantage_T > 0)) | ((ratio_T < 1 - low) & (advantage_T < 0))


SURROGATES = {
    "ppo-clip": ppo_clip,
    "mask": decoupled_mask,
    "cispo": cispo,
    "reinforce": reinforce,
    "nll": negative_log_likelihood,
}
WITHOUT_RATIO = frozenset({"reinforce", "nll"})
"""Surrogates that read no ratio, and so need no log-probs to compare with."""
CLIPPING = frozenset({"ppo-clip", "mask", "cispo"})
"""Surrogates that can clip, and so can have a clipping bias."""
