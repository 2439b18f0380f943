"""Policy gradients whose terms belong to whole groups: pairs with sequence ratios, and a reference answer inside."""

from typing import Literal

import torch
from torch import Tensor

from turnwise.batch import Scores, TokenBatch
from turnwise.ops.facts import Need, Options, Trait, declares, formula
from turnwise.ops.pairs import Members, Pairs, moved, pair_measures, returns
from turnwise.ops.parameters import NonNegative, Positive
from turnwise.ops.ratios import LOG_CLAMP
from turnwise.ops.segments import segment_count, segment_mean
from turnwise.ops.terms import Level, Ratios, Terms

_P3O = {
    "separate": "½ Σ_i min( u_i ρ_i , u_i clip(ρ_i, 1−eps, 1+eps) ),   u_i = sg[ (R_i − R_j) ρ_j ]",
    "joint": "½ min( u δ , u clip(δ, −eps, eps) ),   u = sg[ (R_1 − R_2) ρ_1 ρ_2 ],  δ = log( ρ_1 / ρ_2 )",
}


def _p3o_written(options: Options) -> str:
    return _P3O[options["clip"]]


@declares(Need.MERIT, Need.WHOLE_GROUPS, Need.OLD, Trait.CLIPS, Trait.PER_UNIT)
@formula(_p3o_written)
def p3o(
    batch: TokenBatch,
    scores: Scores,
    ratios: Ratios,
    *,
    clip: Literal["separate", "joint"] = "separate",
    eps: Positive = 0.2,
) -> Terms:
    """The policy gradient of a pair: each answer is the other's baseline, so a shift of both rewards changes nothing.

        separate:  J = ½ Σ_i min( u_i ρ_i , u_i clip(ρ_i, 1±eps) ),   u_i = sg[ (R_i − R_j) ρ_j ]
        joint:     J = ½ min( u δ , u clip(δ, ±eps) ),   u = sg[ (R_1 − R_2) ρ_1 ρ_2 ],  δ = log( ρ_1 / ρ_2 )
        ρ_i = π(y_i) / π_old(y_i), the product over all sampled tokens of the answer

    P3O (2310.00212), V1 and V2. Published are the gradient and that clips are separate or joint; these forms of the
    clip agree with them and are otherwise our reading [M]. A larger group is the mean over all its pairs.
    """
    members = Members.of(batch)
    return_M = returns(batch, members)
    pairs = Pairs.of(members, return_M, ties=True)
    log_M = members.total(moved(batch, scores.logprob_T, "old")).squeeze(1).clamp(-LOG_CLAMP, LOG_CLAMP)
    gain_P = pairs.difference(return_M).to(log_M)
    log_1, log_2 = log_M[pairs.better_P], log_M[pairs.worse_P]
    if clip == "separate":
        first, second = _clipped(gain_P, log_1, log_2, eps), _clipped(-gain_P, log_2, log_1, eps)
        value_P, unclipped_P, clipped_P = first[0] + second[0], first[1] + second[1], first[2] | second[2]
    else:
        weight_P, delta_P = gain_P * (log_1 + log_2).exp().detach(), log_1 - log_2
        value_P, unclipped_P, clipped_P = _pessimistic(weight_P, delta_P, -eps, eps)
    return Terms(
        objective=pairs.mean(value_P / 2),
        level=Level.UNIT,
        unclipped=pairs.mean(unclipped_P / 2),
        clipped=pairs.mean(clipped_P.to(value_P)) > 0,
        measures=pair_measures(batch, scores, against="old"),
    )


def _clipped(gain_P: Tensor, log_P: Tensor, other_P: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return _pessimistic(gain_P * other_P.exp().detach(), log_P.exp(), 1 - eps, 1 + eps)


def _pessimistic(weight_P: Tensor, x_P: Tensor, low: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
    """The smaller of the term with and without the clip; the term without it; and where the clip decides."""
    unclipped_P = weight_P * x_P
    outside_P = ((x_P > high) & (weight_P > 0)) | ((x_P < low) & (weight_P < 0))
    return torch.minimum(unclipped_P, weight_P * x_P.clamp(low, high)), unclipped_P, outside_P


@declares(Need.ADVANTAGE, Need.WHOLE_GROUPS)  # not SAMPLER: that is for parts that need it for every token
@declares(Trait.FOLLOWS_ADVANTAGE, Trait.FIRST_UPDATE_ONLY, Trait.PER_UNIT)
def grao(
    batch: TokenBatch, scores: Scores, ratios: Ratios, *, beta: NonNegative = 0.5, lam: NonNegative = 0.6
) -> Terms:
    """Explore with one's own answers, imitate the reference answer y, and move from one towards the other.

        J = (1/G) Σ_i [ A_i L(o_i) + beta A_y L(y) + lam A_i ( L(o_i) − L(y) ) ],   L(o) = (1/n) Σ_t log π(o_t)

    GRAO (2508.07750), with y inside the group that advantages compare: y is the member whose sampler is unknown
    (`source.expert: 1`). In a group without one only the first term is left.
    """
    if batch.mu_T is None or batch.advantage_T is None:
        raise ValueError("surrogate.grao needs advantages, and sampler log-probs to tell own answers from references")
    members = Members.of(batch)
    likely_M = members.total(scores.logprob_T, "mean").squeeze(1)
    advantage_M = members.total(batch.advantage_T, "mean").squeeze(1)
    given_M = members.total(torch.where(batch.mu_T.isnan(), 1.0, 0.0)).squeeze(1) > 0
    own_M, reference_M = torch.where(given_M, -1, members.unit_M), torch.where(given_M, members.unit_M, -1)

    def mean_of(values_M: Tensor, segment_M: Tensor) -> Tensor:
        return segment_mean(values_M, segment_M, members.units)

    has_reference_U = segment_count(reference_M, members.units) > 0
    explored_U = (1 + lam * has_reference_U) * mean_of(advantage_M * likely_M, own_M)
    imitated_U = beta * mean_of(advantage_M * likely_M, reference_M)
    left_U = lam * mean_of(advantage_M, own_M) * mean_of(likely_M, reference_M)
    return Terms(objective=explored_U + imitated_U - left_U, level=Level.UNIT)


GROUP_LOSSES = {"p3o": p3o, "grao": grao}
