"""Credit: how much better than expected was each token, turn or trajectory.

Every function takes a batch and returns `Credit`, or None if the row needs no credit.
Advantages are constants and carry no gradient.
"""

from typing import Literal

import torch
from torch import Tensor

from turnwise.batch import TokenBatch
from turnwise.ops.chains import Chain, chain
from turnwise.ops.credit import Credit, token_returns, turn_returns
from turnwise.ops.facts import Need, Trait, declares
from turnwise.ops.groups import anchor_state, group_mean, leave_one_out
from turnwise.ops.parameters import Discount
from turnwise.ops.segments import reverse_scan, spread


@declares(Trait.NEUTRAL)
def no_advantage(batch: TokenBatch) -> None:
    """No credit: imitation and preferences need none.

    A_t = 0, and nobody reads it
    """
    return None


@declares(Need.TOKEN_VALUES)
def gae(batch: TokenBatch, *, gamma: Discount = 1.0, lam: Discount = 1.0) -> Credit:
    """Token-level generalised advantage estimation over the sampled tokens of the whole episode.

        δ_t = r_t + γ V_{t+1} − V_t
        A_t = δ_t + γ λ A_{t+1}

    t+1 is the next *sampled* token: one discount per sampled token, none for environment tokens. After the last one V
    is the bootstrap value if the episode was truncated, else 0. With γ < 1 this is NTPO, the flat counterpart of POAD.
    Schulman et al. 2016, arXiv 1506.02438.
    """
    return split_gae(batch, gamma_token=gamma, lam_token=lam, gamma_turn=gamma, lam_turn=lam)


@declares(Need.TOKEN_VALUES)
def split_gae(
    batch: TokenBatch,
    *,
    gamma_token: Discount = 1.0,
    lam_token: Discount = 0.95,
    gamma_turn: Discount = 0.99,
    lam_turn: Discount = 0.95,
) -> Credit:
    """Token-level GAE with one discount inside a turn and another between turns.

        δ_t = r_t + γ V_{t+1} − V_t
        A_t = δ_t + γ λ A_{t+1}
        (γ, λ) = (γ_turn, λ_turn) on a turn's last token, else (γ_token, λ_token)

    γ_token = 1 is POAD (arXiv 2405.15821): discounting cannot shorten an action. Two free pairs are the dual
    discounting of Verlog.
    """
    links = chain(batch)
    value_M = links.pick(_values(batch))
    advantage_M = _walk(
        reward=links.pick(batch.reward_T),
        value=value_M,
        after=links.after_tokens(required=True),
        ends=links.ends_M,
        gamma=_at_turn_ends(links, gamma_turn, gamma_token),
        lam=_at_turn_ends(links, lam_turn, lam_token),
    )
    return Credit(advantage_T=links.put(advantage_M), return_T=links.put(advantage_M + value_M))


@declares(Need.TURN_VALUES, Trait.SAME_IN_TURN)
def turn_gae(batch: TokenBatch, *, gamma: Discount = 1.0, lam: Discount = 1.0) -> Credit:
    """GAE over turns; every token of a turn gets the turn's advantage.

        δ_k = R_k + γ V(s_{k+1}) − V(s_k)
        A_k = δ_k + γ λ A_{k+1}

    V(s_k) is the value at the turn's first token, that is, of the state before the turn. As in GEM's PPO (2510.01051).
    """
    links = chain(batch)
    value_J = links.pick(_values(batch))[links.open_J]
    advantage_J = _walk(
        reward=links.per_turn(batch.reward_T),
        value=value_J,
        after=links.after_turns(required=True),
        ends=links.ends_J,
        gamma=gamma,
        lam=lam,
    )
    return Credit(
        advantage_T=links.put(spread(advantage_J, links.turn_M)),
        return_T=links.put(spread(advantage_J + value_J, links.turn_M)),
    )


@declares(Need.TOKEN_VALUES)
def bilevel_gae(
    batch: TokenBatch, *, gamma_turn: Discount = 0.99, gamma_token: Discount = 1.0, lam: Discount = 1.0
) -> Credit:
    """GAE over turn ends first, then token GAE inside each turn towards its turn's result.

        A_k = δ_k + γ_turn λ A_{k+1},    δ_k = R_k + γ_turn V(e_{k+1}) − V(e_k)
        inside turn k:  r'(e_k) = A_k + V(e_k),   A_t = δ_t + γ_token λ A_{t+1},   V after e_k = 0

    e_k is the turn's last token. VAGEN (its public code; see the notes on granularity methods).
    """
    links = chain(batch)
    value_M = links.pick(_values(batch))
    end_value_J = value_M[links.close_J]
    advantage_J = _walk(
        reward=links.per_turn(batch.reward_T),
        value=end_value_J,
        after=links.after_turns(required=True),
        ends=links.ends_J,
        gamma=gamma_turn,
        lam=lam,
    )
    target_M = torch.where(links.closes_M, spread(advantage_J + end_value_J, links.turn_M), 0)
    advantage_M = _walk(
        reward=target_M,
        value=value_M,
        after=torch.zeros_like(value_M),
        ends=links.closes_M,
        gamma=gamma_token,
        lam=lam,
    )
    return Credit(advantage_T=links.put(advantage_M), return_T=links.put(advantage_M + value_M))


@declares(Trait.SAME_IN_TURN, level="turn")
def return_to_go(batch: TokenBatch, *, level: Literal["token", "turn"] = "turn", gamma: Discount = 1.0) -> Credit:
    """The discounted reward still to come, without a critic.

        G_k = R_k + γ G_{k+1}        (level turn: shared by the turn's tokens)
        G_t = r_t + γ G_{t+1}        (level token)

    REINFORCE; with batch normalisation over turns it is GEM's ReBN (2510.01051), at token level REINFORCE++
    (2501.03262). A truncated episode continues with its bootstrap value if one is assigned, else with 0.
    """
    links = chain(batch)
    if level == "turn":
        return Credit(advantage_T=links.put(spread(turn_returns(links, gamma=gamma), links.turn_M)))
    return Credit(advantage_T=links.put(token_returns(links, gamma=gamma)))


def _values(batch: TokenBatch) -> Tensor:
    if batch.value_T is None:
        raise ValueError("this advantage needs the critic's values: score the batch first (value_T is not assigned)")
    batch.require_finite("value", batch.value_T)
    return batch.value_T.detach()


def _at_turn_ends(links: Chain, at_end: float, inside: float) -> Tensor | float:
    """`at_end` on a turn's last token, `inside` elsewhere; a plain float if they are equal."""
    if at_end == inside:
        return inside
    like = links.batch.reward_T
    return torch.where(links.closes_M, like.new_tensor(at_end), like.new_tensor(inside))


def _walk(
    *, reward: Tensor, value: Tensor, after: Tensor, ends: Tensor, gamma: Tensor | float, lam: Tensor | float
) -> Tensor:
    """GAE along a chain of links (tokens or turns): A = δ + γ λ A_next, δ = r + γ V_next − V."""
    following = torch.where(ends, after, torch.cat([value[1:], value[:1]]))
    delta = reward + gamma * following - value
    return reverse_scan(delta, gamma * lam * (~ends).to(delta))


ADVANTAGES = {
    "none": no_advantage,
    "gae": gae,
    "split-gae": split_gae,
    "turn-gae": turn_gae,
    "bilevel-gae": bilevel_gae,
    "return-to-go": return_to_go,
    "group-mean": group_mean,
    "leave-one-out": leave_one_out,
    "anchor-state": anchor_state,
}
