"""Losses on the scores of whole answers, as surrogates of a row. `_M` is one entry per trajectory of the batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from turnwise.algorithm import Algorithm, Level, Need, Ratios, Terms, declares
from turnwise.batch import Scores, TokenBatch
from turnwise.ops.pairs import Members, Pairs, merit, returns
from turnwise.ops.segments import segment_max, segment_mean


def answer_scores(batch: TokenBatch, scores: Scores, members: Members) -> Tensor:
    """The score of each answer: that of its last sampled token, which has seen all of it."""
    assert scores.value_T is not None
    token_T = torch.arange(batch.tokens, device=members.row_T.device)
    return scores.value_T[segment_max(token_T, members.row_T, members.count)]


@declares(Need.ANSWER_SCORES, Need.WHOLE_GROUPS)
def bradley_terry(batch: TokenBatch, scores: Scores, ratios: Ratios) -> Terms:
    """The log-probability that the better answer of each pair wins, the mean over all pairs of a group.

    J_u = mean over i, j with r_i > r_j of  log σ(s_i − s_j)
    """
    members = Members.of(batch)
    pairs, score_M = Pairs.of(members, merit(batch, members)), answer_scores(batch, scores, members)
    won_P = logsigmoid(score_M[pairs.better_P] - score_M[pairs.worse_P])
    return Terms(objective=pairs.mean(won_P), level=Level.UNIT)


@declares(Need.ANSWER_SCORES, Need.WHOLE_GROUPS)
def regression(batch: TokenBatch, scores: Scores, ratios: Ratios) -> Terms:
    """Half the squared distance from an answer's score to what it earned, the mean over a group.

    J_u = −½ mean_i (s_i − r_i)²
    """
    members = Members.of(batch)
    score_M = answer_scores(batch, scores, members)
    missed_M = (score_M - returns(batch, members).to(score_M)).square() / 2
    return Terms(objective=-segment_mean(missed_M, members.unit_M, members.units), level=Level.UNIT)


LOSSES = {"bradley-terry": bradley_terry, "regression": regression}


def row_of(loss: str) -> Algorithm:
    """The row that learns by one of the losses."""
    surrogate = f"{__name__}:{LOSSES[loss].__name__}"
    filters = ["ties"] if loss == "bradley-terry" else []
    return Algorithm.of({"name": loss, "surrogate": surrogate, "weights": "unit-mean", "filters": filters})
