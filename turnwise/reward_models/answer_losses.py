"""Losses on the scores of whole answers, as surrogates of a row. `_M` is one entry per trajectory of the batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from turnwise.algorithm import Algorithm, Level, Need, Ratios, Terms, declares
from turnwise.batch import Scores, TokenBatch
from turnwise.ops.segments import segment_max, segment_mean, segment_sum


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers of a batch: their scores, what they earned, and the unit that each belongs to."""

    score_M: Tensor
    reward_M: Tensor
    unit_M: Tensor
    units: int

    @classmethod
    def of(cls, batch: TokenBatch, scores: Scores) -> Answers:
        """An answer's score is that of its last sampled token, which has seen all of it."""
        assert scores.value_T is not None
        known, row_S = batch.trajectory_S.unique(return_inverse=True)
        row_T = torch.where(batch.sampled_T, row_S[batch.sequence_T], -1)
        last_M = segment_max(torch.arange(batch.tokens, device=row_T.device), row_T, known.numel())
        unit_S, units = batch.unit_rows
        return cls(
            score_M=scores.value_T[last_M],
            reward_M=segment_sum(batch.reward_T, row_T, known.numel()),
            unit_M=unit_S.new_zeros(known.numel()).scatter(0, row_S, unit_S),
            units=units,
        )


@declares(Need.ANSWER_SCORES, Need.WHOLE_GROUPS)
def bradley_terry(batch: TokenBatch, scores: Scores, ratios: Ratios) -> Terms:
    """The log-probability that the better answer of each pair wins, the mean over all pairs of a group.

    J_u = mean over i, j with r_i > r_j of  log σ(s_i − s_j)
    """
    answers = Answers.of(batch, scores)
    together = answers.unit_M[:, None] == answers.unit_M[None, :]
    better, worse = (together & (answers.reward_M[:, None] > answers.reward_M[None, :])).nonzero(as_tuple=True)
    won_P = logsigmoid(answers.score_M[better] - answers.score_M[worse])
    return Terms(objective=segment_mean(won_P, answers.unit_M[better], answers.units), level=Level.UNIT)


@declares(Need.ANSWER_SCORES, Need.WHOLE_GROUPS)
def regression(batch: TokenBatch, scores: Scores, ratios: Ratios) -> Terms:
    """Half the squared distance from an answer's score to what it earned, the mean over a group.

    J_u = −½ mean_i (s_i − r_i)²
    """
    answers = Answers.of(batch, scores)
    missed_M = (answers.score_M - answers.reward_M).square() / 2
    return Terms(objective=-segment_mean(missed_M, answers.unit_M, answers.units), level=Level.UNIT)


LOSSES = {"bradley-terry": bradley_terry, "regression": regression}


def row_of(loss: str) -> Algorithm:
    """The row that learns by one of the losses."""
    surrogate = f"{__name__}:{LOSSES[loss].__name__}"
    filters = ["zero-variance"] if loss == "bradley-terry" else []
    return Algorithm.of({"name": loss, "surrogate": surrogate, "weights": "unit-mean", "filters": filters})
