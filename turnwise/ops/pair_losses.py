"""Losses on comparisons: one term per unit, the mean over its pairs or members.

Δ(y) is how far the policy moved on an answer, log( π(y) / π_base(y) ), over its sampled tokens. w is the better answer
of a pair, l the worse. Only tokens of the policy count, so an answer may be a chat of several turns. `level: turn` is
ours: it compares the k-th turn of one answer with the k-th of the other and averages over the turns that both have.
"""

from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from turnwise.batch import Scores, TokenBatch
from turnwise.ops.facts import Need, Options, Part, Trait, declares, formula, refuses
from turnwise.ops.pairs import Against, Length, Members, PairLevel, Pairs, merit, moved, pair_measures, wins
from turnwise.ops.parameters import NonNegative, Positive
from turnwise.ops.terms import Level, Ratios, Terms

Smoothing = Annotated[float, Field(gt=0, lt=0.5)]
_COMPARES = declares(Need.MERIT, Need.WHOLE_GROUPS, Trait.PER_UNIT)
_AGAINST_OLD, _AGAINST_REFERENCE = declares(Need.OLD, against="old"), declares(Need.REFERENCE, against="reference")


def _written(term: str) -> Callable[[Part], Part]:
    """How `explain` writes a term: with Δ as the options define it."""

    def write(options: Options) -> str:
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
    margin_PC = beta * pairs.difference(moved_MC)
    doubt = label_smoothing or 0.0
    doubt_PC = _doubt(batch, members, pairs).to(margin_PC) if labels == "wins" else torch.full_like(margin_PC, doubt)
    value_PC = (1 - doubt_PC) * logsigmoid(margin_PC) + doubt_PC * logsigmoid(-margin_PC)
    return _terms(batch, scores, pairs.mean_of_columns(members, value_PC), against)


@_COMPARES
@_AGAINST_OLD
@_AGAINST_REFERENCE
@_written("−( Δ_w − Δ_l − 1/(2·beta) )²")
def ipo(
    batch: TokenBatch,
    scores: Scores,
    ratios: Ratios,
    *,
    beta: Positive = 0.1,
    length: Length = "mean",
    level: PairLevel = "sequence",
    against: Against = "reference",
) -> Terms:
    """A margin that is met, not exceeded.

        J = −( Δ_w − Δ_l − 1/(2·beta) )²

    IPO (2310.12036). Its authors take the mean over tokens (as TRL reports from them); `length: sum` is the equation
    as printed.
    """
    members, pairs = _pairs(batch, level)
    margin_PC = pairs.difference(members.total(moved(batch, scores.logprob_T, against), length))
    value_PC = -((margin_PC - 1 / (2 * beta)) ** 2)
    return _terms(batch, scores, pairs.mean_of_columns(members, value_PC), against)


@declares(Need.MERIT, Trait.PER_UNIT)
@_AGAINST_OLD
@_AGAINST_REFERENCE
@_written("−λ_y ( 1 − σ( ±beta (Δ − anchor) ) )")
def kto(
    batch: TokenBatch,
    scores: Scores,
    ratios: Ratios,
    *,
    beta: Positive = 0.1,
    threshold: float = 0.5,
    anchor: NonNegative = 0.0,
    desirable: Positive = 1.0,
    undesirable: Positive = 1.0,
    against: Against = "reference",
) -> Terms:
    """Good answers above the anchor, bad ones below it; nobody needs a partner.

        J = −λ_y ( 1 − σ( ±beta (Δ − anchor) ) )
        merit above the threshold: + and λ_y = desirable;  else: − and λ_y = undesirable

    KTO (2402.01306). It estimates the anchor, the KL to the reference, from mismatched answers of the batch; ours is a
    constant, so it needs no further pass and terms do not depend on their neighbours.
    """
    members = Members.of(batch)
    moved_M = members.total(moved(batch, scores.logprob_T, against)).squeeze(1)
    good_M = merit(batch, members) > threshold
    gain_M = torch.sigmoid(beta * torch.where(good_M, moved_M - anchor, anchor - moved_M))
    value_M = torch.where(good_M, desirable, undesirable) * (gain_M - 1)
    return Terms(objective=members.mean(value_M), level=Level.UNIT)


def _tdpo_written(options: Options) -> str:
    chosen = "sg[D_w]" if options["detach"] else "D_w"
    return f"log σ( beta ( Δ_w − Δ_l − alpha·(D_l − {chosen}) ) ),   D = Σ_t KL_t(π_ref ‖ π)"


@_COMPARES
@declares(Need.REFERENCE, Need.KL_FROM_REFERENCE)
@formula(_tdpo_written)
def tdpo(
    batch: TokenBatch,
    scores: Scores,
    ratios: Ratios,
    *,
    beta: Positive = 0.1,
    alpha: NonNegative = 0.5,
    detach: bool = True,
    level: PairLevel = "sequence",
) -> Terms:
    """DPO that also keeps the worse answer's distributions near the reference.

        J = log σ( beta ( Δ_w − Δ_l − alpha·(D_l − D_w) ) ),   D = Σ_t KL_t(π_ref ‖ π) over the whole vocabulary
        with detach D_w is a constant

    TDPO (2404.11999): TDPO2 as it stands, TDPO1 with alpha 1 and `detach: false`. With alpha 0 it is DPO.
    """
    if scores.reverse_kl_T is None:
        raise ValueError("surrogate.tdpo needs the full KL from the reference; let the learner compute it")
    members, pairs = _pairs(batch, level)
    margin_PC = pairs.difference(members.total(moved(batch, scores.logprob_T, "reference")))
    far_MC = members.total(scores.reverse_kl_T)
    chosen_PC = far_MC[pairs.better_P]
    gap_PC = far_MC[pairs.worse_P] - (chosen_PC.detach() if detach else chosen_PC)
    value_PC = logsigmoid(beta * (margin_PC - alpha * gap_PC))
    return _terms(batch, scores, pairs.mean_of_columns(members, value_PC), "reference")


@_COMPARES
@declares(Need.WINS)
@_AGAINST_OLD
@_AGAINST_REFERENCE
@_written("mean_i −( Δ_i − (P_i − 1/2) / beta )²")
def sppo(
    batch: TokenBatch, scores: Scores, ratios: Ratios, *, beta: Positive = 0.001, against: Against = "old"
) -> Terms:
    """Every answer to its own target: how much it wins, not only by how much more than another.

        J = mean_i −( Δ_i − (P_i − 1/2) / beta )²

    SPPO (2405.00675), with beta = 1/η. P_i is the win probability against the samples of the group; after `extremes`
    with `wins: pair` against the other of the pair, the published `sppo_single`.
    """
    members = Members.of(batch)
    moved_M = members.total(moved(batch, scores.logprob_T, against)).squeeze(1)
    target_M = (wins(batch, members) - 0.5) / beta
    return _terms(batch, scores, members.mean(-((moved_M - target_M.to(moved_M)) ** 2)), against)


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


PAIR_LOSSES = {"dpo": dpo, "ipo": ipo, "kto": kto, "tdpo": tdpo, "sppo": sppo}
