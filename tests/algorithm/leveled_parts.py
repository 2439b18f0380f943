"""Parts whose terms belong to turns, sequences or whole groups: what a user may write."""

import torch

from turnwise.algorithm import Level, Need, Ratios, Terms, declares
from turnwise.batch import Scores, TokenBatch
from turnwise.ops.segments import segment_mean, segment_sum


@declares(Need.ADVANTAGE)
def turn_likelihood(batch: TokenBatch, scores: Scores, ratios: Ratios) -> Terms:
    """The mean log-prob of a turn times its mean advantage.

    J_k = Ā_k · mean_{t in k} log π_t
    """
    return _likelihood(batch, scores, Level.TURN)


@declares(Need.ADVANTAGE)
def sequence_likelihood(batch: TokenBatch, scores: Scores, ratios: Ratios) -> Terms:
    """The same over a sequence.

    J_i = Ā_i · mean_{t in i} log π_t
    """
    return _likelihood(batch, scores, Level.SEQUENCE)


@declares(Need.REFERENCE, Need.WHOLE_GROUPS)
def preferred(batch: TokenBatch, scores: Scores, ratios: Ratios, *, beta: float = 0.1) -> Terms:
    """Members of a group that earned more than its mean against those that earned less.

    J_u = log σ( β Σ_{t in u} sign(R_t − R̄_u) log(π_t / π_ref,t) )
    """
    assert batch.ref_T is not None
    unit_T, units = Level.UNIT.rows(batch)
    side_T = torch.where(batch.sampled_T, _side(batch)[batch.sequence_T], 0)
    moved_T = torch.where(batch.sampled_T, scores.logprob_T - batch.ref_T, 0)
    return Terms(
        objective=torch.nn.functional.logsigmoid(beta * segment_sum(side_T * moved_T, unit_T, units)), level=Level.UNIT
    )


@declares(Need.WHOLE_GROUPS)
def lopsided(batch: TokenBatch, scores: Scores, *, coef: float = 0.3) -> Terms:
    """A penalty per group: the square of its mean log-prob.

    coef · (mean_{t in u} log π_t)²
    """
    unit_T, units = Level.UNIT.rows(batch)
    return Terms(objective=coef * segment_mean(scores.logprob_T, unit_T, units) ** 2, level=Level.UNIT)


@declares(Need.REFERENCE)
def anchored(batch: TokenBatch, scores: Scores, *, coef: float = 0.1) -> torch.Tensor:
    """A user's own distance from the reference.

    coef · (log π_t − log π_ref,t)²
    """
    assert batch.ref_T is not None, "the part declared that it needs a reference"
    return coef * (scores.logprob_T - batch.ref_T) ** 2


@declares(Need.ROUTING)
def routed(batch: TokenBatch, scores: Scores) -> torch.Tensor:
    """Needs what no policy here provides.

    0 = 0
    """
    raise AssertionError("never called")


def _likelihood(batch: TokenBatch, scores: Scores, level: Level) -> Terms:
    assert batch.advantage_T is not None
    row_T, rows = level.rows(batch)
    advantage_T = torch.where(batch.sampled_T, batch.advantage_T, 0)
    mean = segment_mean(scores.logprob_T, row_T, rows)
    return Terms(objective=segment_mean(advantage_T, row_T, rows) * mean, level=level)


def _side(batch: TokenBatch) -> torch.Tensor:
    """+1 for sequences of trajectories that earned more than their group's mean, -1 for less, 0 for as much."""
    earned_T = torch.where(batch.sampled_T, batch.reward_T, 0)
    trajectories, groups = int(batch.trajectory_S.max()) + 1, int(batch.group_S.max()) + 1
    return_N = segment_sum(earned_T, batch.trajectory_S[batch.sequence_T], trajectories)
    mean_G = segment_mean(return_N[batch.trajectory_S], batch.group_S, groups)
    return torch.sign(return_N[batch.trajectory_S] - mean_G[batch.group_S])
