"""What every advantage returns, and the discounted sums that many advantages use."""

from dataclasses import dataclass

from torch import Tensor

from turnwise.ops.chains import Chain
from turnwise.ops.segments import reverse_scan


@dataclass(frozen=True, kw_only=True)
class Credit:
    """An advantage per token, and the critic's target where there is a critic."""

    advantage_T: Tensor
    return_T: Tensor | None = None


def token_returns(links: Chain, *, gamma: float) -> Tensor:
    """G_t = r_t + γ G_{t+1} along the sampled tokens; truncated episodes continue with their bootstrap value."""
    reward_M = links.pick(links.batch.reward_T) + gamma * links.after_tokens(required=False)
    return reverse_scan(reward_M, gamma * (~links.ends_M).to(reward_M))


def turn_returns(links: Chain, *, gamma: float) -> Tensor:
    """G_k = R_k + γ G_{k+1} over the non-empty turns."""
    reward_J = links.per_turn(links.batch.reward_T) + gamma * links.after_turns(required=False)
    return reverse_scan(reward_J, gamma * (~links.ends_J).to(reward_J))
