"""Losses on comparisons: one term per unit, the mean over its pairs or members.

Δ(y) is how far the policy moved on an answer, log( π(y) / π_base(y) ), over its sampled tokens. w is the better answer
of a pair, l the worse. Only tokens of the policy count, so an answer may be a chat of several turns. `level: turn` is
ours: it compares the k-th turn of one answer with the k-th of the other and averages over the turns that both have.
"""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from turnwise.batch import Scores, TokenBatch
from turnwise.ops.facts import Need, declares, formula, refuses
from turnwise.ops.pairs import Against, Length, Members, PairLevel, Pairs, merit, moved, pair_measures, wins
from turnwise.ops.parameters import Positive
from turnwise.ops.terms import Level, Ratios, Terms

Smoothing = Annotated[float, Field(gt=0, lt=0.5)]
_COMPARES = declares(Need.MERIT, Need.WHOLE_GROUPS)
_AGAINST_OLD, _AGAINST_REFERENCE = declares(Need.OLD, against="old"), declares(Need.REFERENCE, against="reference")


def _written(term: str) -> Any:
    """How `explain` writes a term: with Δ as the options define it."""

    def write(options: Any) -> str:
        base = "π_old" if options.get("against") == "old" else "π_ref"
        per = "(1/n) " if options.get("length") == "mean" else ""
        over = "turn k" if options.get("level") == "turn" else "y"
        return f"{term},   Δ = {per}Σ_{{t in {over}}} log( π_t / {base},t )"

    return formula(write)


@_COMPARES
@_AGAINST_OLD
@_AGAINST_REFERENCE
@declares(Need.WINS, labels="wins")
@refuses(
    lambda options: options["labels"] == "wins" and options["label_smoothing"] is not None,
    "labels=wins already says how sure each preference is; leave label_smoothing out",
)
@_written("log σ( beta (Δ_w − Δ_l) )")
def dpo(
    batch: TokenBatch,
    scores: Scores,
    ratios: Ratios,
    *,
    beta: Positive = 0.1,
    label_smoothing: Smoothing | None = None,
    labels: Literal["hard", "wins"] = "hard",
    length: Length = "sum",
    level: PairLevel = "sequence",
    against: Against = "reference",
) -> Terms:
    """The log-probability that the better answer wins.

        J = log σ( beta (Δ_w − Δ_l) )
        label_smoothing: J = (1−ε) log σ( beta (Δ_w − Δ_l) ) + ε log σ( −beta (Δ_w − Δ_l) ),   ε = label_smoothing

    DPO (2305.18290); label smoothing as in cDPO. `labels: wins` puts ε = 1 − P_w / (P_w + P_l), with the judge's win
    probabilities: after `extremes` with `wins: pair` that is the probability that l beats w. `length: mean` divides by
    the number of tokens.
    """
    members, pairs = _pairs(batch, level)
    moved_MC = members.total(moved(batch, scores.logprob_T, against), length)
    margin_PC = beta * (moved_MC[pairs.better_P] - moved_MC[pairs.worse_P])
    doubt = label_smoothing or 0.0
    doubt_PC = _doubt(batch, members, pairs).to(margin_PC) if labels == "wins" else torch.full_like(margin_PC, doubt)
    value_PC = (1 - doubt_PC) * logsigmoid(margin_PC) + doubt_PC * logsigmoid(-margin_PC)
    return _terms(batch, scores, pairs.mean_of_columns(members, value_PC), against)


def _pairs(batch: TokenBatch, level: PairLevel = "sequence") -> tuple[Members, Pairs]:
    members = Members.of(batch, level=level)
    return members, Pairs.of(members, merit(batch, members))


def _doubt(batch: TokenBatch, members: Members, pairs: Pairs) -> Tensor:
    """The probability that the worse answer is the better one, as a column."""
    wins_M = wins(batch, members)
    better_P, worse_P = wins_M[pairs.better_P], wins_M[pairs.worse_P]
    return (worse_P / (better_P + worse_P))[:, None]


def _terms(batch: TokenBatch, scores: Scores, objective_U: Tensor, against: Against) -> Terms:
    return Terms(objective=objective_U, level=Level.UNIT, measures=pair_measures(batch, scores, against=against))


PAIR_LOSSES = {"dpo": dpo}
