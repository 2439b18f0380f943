"""Changes to the reward stream before credit is computed, in the order in which a row lists them."""

import math
from typing import Literal

import torch
from torch import Tensor

from turnwise.batch import TokenBatch
from turnwise.ops.chains import Chain, chain
from turnwise.ops.facts import Need, declares, is_given, refuses
from turnwise.ops.groups import ROUNDING, ReturnTable
from turnwise.ops.parameters import Count, NonNegative, Positive
from turnwise.ops.segments import segment_count


@declares(Need.OLD, Need.REFERENCE)
@declares(Need.KL_CONTROL, target=is_given)
@declares(Need.OLD_KL, estimator="full")
@refuses(
    lambda options: options["target"] is not None and options["coef"] == 0,
    "coef=0 stays 0 whatever the target; set coef above 0",
)
def token_kl(
    batch: TokenBatch,
    *,
    coef: NonNegative = 0.001,
    target: Positive | None = None,
    gain: Positive = 0.1,
    estimator: Literal["k1", "full"] = "k1",
) -> Tensor:
    """Pay for every step away from the reference, inside the reward.

        r_t ← r_t − coef · KL_t
        estimator=k1:    KL_t = log π_old(y_t) − log π_ref(y_t)
        estimator=full:  KL_t = Σ_v π_old(v) (log π_old(v) − log π_ref(v)),   exact: over the whole vocabulary
        target: after each step  coef ← coef · (1 + gain · clamp(KL / target − 1, ±0.2))

    On sampled tokens only, by the k1 estimate, or `full`: exact over the vocabulary, as CORY has it (2410.06101). PPO
    for language models, PPO-max (2307.04964), REINFORCE++. With a `target` the coefficient adapts (`next_kl_coef`), and
    `coef` is what it starts with.
    """
    if batch.old_T is None or batch.ref_T is None:
        missing = "old_T" if batch.old_T is None else "ref_T"
        raise ValueError(f"reward.token-kl needs the old and the reference log-probs ({missing} is not assigned)")
    batch.require_finite("log-prob 'old'", batch.old_T)
    batch.require_finite("log-prob 'ref'", batch.ref_T)
    if target is not None:
        if batch.history is None or batch.history.kl_coef is None:
            raise ValueError("reward.token-kl with a target needs a coefficient (history.kl_coef is not assigned)")
        coef = batch.history.kl_coef
    kl_T = batch.old_T - batch.ref_T
    if estimator == "full":
        if batch.old_kl_T is None:
            raise ValueError("reward.token-kl: estimator 'full' needs a full KL (old_kl_T is not assigned)")
        batch.require_finite("the old policy's KL", kl_T := batch.old_kl_T)
    return batch.reward_T - torch.where(batch.sampled_T, coef * kl_T, 0)


def next_kl_coef(coef: float, kl: float, *, target: float, gain: float) -> float:
    """The coefficient of the next step: larger if the KL was above its target, smaller if below.

        coef · (1 + gain · clamp(KL / target − 1, ±0.2)),   KL = mean over trajectories of Σ_t (log π_old − log π_ref)

    The proportional controller of Ziegler et al. (1909.08593), where gain is 0.1. A horizon of H episodes, as in TRL,
    is a gain of (episodes of a step) / H.
    """
    return coef * (1 + gain * min(max(kl / target - 1, -0.2), 0.2))


@refuses(
    lambda options: options["margin"] > options["limit"],
    "margin={margin} above limit={limit} punishes every length; set margin below limit",
)
def overlong(batch: TokenBatch, *, limit: Count = 20480, margin: Count = 4096) -> Tensor:
    """Punish trajectories that come near the length limit.

        R_i ← R_i − clamp( (n_i − (limit − margin)) / margin , 0, 1 ),   n_i = sampled tokens

    Soft overlong punishment of DAPO (2503.14476); it lands on the trajectory's last sampled token.
    """
    links = chain(batch)
    trajectory_M = _trajectories(links)
    length_N = segment_count(trajectory_M, int(batch.trajectory_S.max()) + 1).to(batch.reward_T)
    penalty_N = ((length_N - (limit - margin)) / margin).clamp(0, 1)
    return batch.reward_T - links.put(torch.where(links.ends_M, penalty_N[trajectory_M], 0))


@declares(Need.REWARD_HISTORY)
def running(batch: TokenBatch, *, center: bool = True, clip: Positive | None = None) -> Tensor:
    """Put returns on the scale of all returns that the run has learned from, this batch included.

        R_i ← (R_i − m) / std R,   m = mean R if center else 0
        clip:  R_i ← clamp(R_i, ±clip)

    PPO-max (2307.04964). `center: false` is reward scaling. Every reward is divided, and the trajectory's last sampled
    token gets what is missing from its return. Population std; returns without any spread become 0, or stay as they are
    if not centred. Place it before `token-kl`, whose part is then neither scaled nor clipped.
    """
    if batch.history is None or batch.history.returns is None:
        raise ValueError("reward.running needs the moments of all returns (history.returns is not assigned)")
    past = batch.history.returns
    std = math.sqrt(past.variance)
    spreads = std > ROUNDING * abs(past.mean)
    scale = std if spreads else 1.0
    links, return_N = chain(batch), ReturnTable.of(batch).return_N
    wanted_N = (return_N - past.mean if center else return_N) / scale
    if center and not spreads:
        wanted_N = torch.zeros_like(return_N)
    if clip is not None:
        wanted_N = wanted_N.clamp(-clip, clip)
    missing_M = torch.where(links.ends_M, (wanted_N - return_N / scale)[_trajectories(links)], 0)
    return (batch.reward_T.double() / scale + links.put(missing_M)).to(batch.reward_T)


def _trajectories(links: Chain) -> Tensor:
    """The trajectory of each link."""
    return links.batch.trajectory_S[links.batch.sequence_T[links.token_M]]


REWARDS = {"running": running, "token-kl": token_kl, "overlong": overlong}
