"""Changes to the reward stream before credit is computed."""

import torch
from torch import Tensor

from turnwise.batch import TokenBatch
from turnwise.ops.chains import chain
from turnwise.ops.facts import Need, declares, refuses
from turnwise.ops.parameters import Count, NonNegative
from turnwise.ops.segments import segment_count


@declares(Need.OLD, Need.REFERENCE)
def token_kl(batch: TokenBatch, *, coef: NonNegative = 0.001) -> Tensor:
    """Pay for every step away from the reference, inside the reward.

        r_t ← r_t − coef · (log π_old(y_t) − log π_ref(y_t))

    The k1 estimate, on sampled tokens only. PPO for language models, PPO-max (2307.04964), REINFORCE++.
    """
    if batch.old_T is None or batch.ref_T is None:
        missing = "old_T" if batch.old_T is None else "ref_T"
        raise ValueError(f"reward.token-kl needs the old and the reference log-probs ({missing} is not assigned)")
    batch.require_finite("log-prob 'old'", batch.old_T)
    batch.require_finite("log-prob 'ref'", batch.ref_T)
    return batch.reward_T - torch.where(batch.sampled_T, coef * (batch.old_T - batch.ref_T), 0)


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
    trajectory_M = batch.trajectory_S[batch.sequence_T[links.token_M]]
    length_N = segment_count(trajectory_M, int(batch.trajectory_S.max()) + 1).to(batch.reward_T)
    penalty_N = ((length_N - (limit - margin)) / margin).clamp(0, 1)
    return batch.reward_T - links.put(torch.where(links.ends_M, penalty_N[trajectory_M], 0))


REWARDS = {"token-kl": token_kl, "overlong": overlong}
