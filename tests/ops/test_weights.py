"""Token weights: the five means, their denominators, and their sums."""

import pytest
import torch
from hypothesis import given

from tests.ops import reference, reference_loss
from tests.ops.batches import Case, EpisodeShape, TurnShape, cases, close, make_case, ragged, random_case
from turnwise.ops.weights import WEIGHTS, Counts, constant, sequence_mean, sequence_sum, token_mean, turn_mean
from turnwise.types import TokenBatch

KINDS = ["token-mean", "turn-mean", "sequence-mean", "sequence-sum", "constant"]


def with_rejections(case: Case) -> TokenBatch:
    """Reject about a third of the tokens."""
    draws_T = torch.rand(case.batch.tokens, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return case.batch.with_(mismatch_T=torch.where(draws_T < 0.35, 0, draws_T))


def test_weights_by_hand():
    one = EpisodeShape(turns=[TurnShape(sampled=3), TurnShape(sampled=1)])
    batch = make_case([[one, EpisodeShape(turns=[TurnShape(sampled=1), TurnShape(sampled=0)])]]).batch
    counts, sampled_T = Counts.of(batch), batch.sampled_T
    assert (counts.tokens, counts.turns, counts.sequences) == (5, 3, 2)  # an empty turn is no turn
    close(token_mean(batch, counts)[sampled_T], [0.2] * 5)
    close(turn_mean(batch, counts)[sampled_T], [1 / 9, 1 / 9, 1 / 9, 1 / 3, 1 / 3])
    close(sequence_mean(batch, counts)[sampled_T], [1 / 8] * 4 + [1 / 2])
    close(sequence_sum(batch, counts)[sampled_T], [0.5] * 5)
    close(constant(batch, counts, length=10.0)[sampled_T], [0.05] * 5)


@pytest.mark.parametrize("kind", KINDS)
@ragged
@given(cases)
def test_weights_agree_with_loops_also_after_rejections(kind: str, case: Case):
    made, options = reference.layout(case.groups), {"length": 7.0} if kind == "constant" else {}
    for batch in (case.batch, with_rejections(case)):
        rejected = [False] * batch.tokens if batch.mismatch_T is None else (batch.mismatch_T == 0).tolist()
        kept = [not out for out in rejected]
        expected = reference_loss.weights(made, kept, kind=kind, **options)
        close(WEIGHTS[kind](batch, Counts.of(batch), **options), expected)


@pytest.mark.parametrize("kind", ["token-mean", "turn-mean", "sequence-mean"])
def test_means_sum_to_one(kind: str):
    batch = with_rejections(random_case(9))
    assert float(WEIGHTS[kind](batch, Counts.of(batch)).sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_micro_batches_under_global_counts_are_those_of_the_whole(kind: str):
    batch = with_rejections(random_case(6))
    whole_T = WEIGHTS[kind](batch, Counts.of(batch))
    parts = [batch.select([sequence]) for sequence in range(batch.sequences)]
    counts = Counts(tokens=0, turns=0, sequences=0)
    for part in parts:
        counts = counts + Counts.of(part)
    assert counts == Counts.of(batch)
    close(torch.cat([WEIGHTS[kind](part, counts) for part in parts]), whole_T)


def test_nothing_sampled_gives_zero_weights_and_not_nan():
    batch = make_case([[EpisodeShape(turns=[TurnShape(prompt=3, sampled=0)])]]).batch
    for kind in KINDS:
        close(WEIGHTS[kind](batch, Counts.of(batch)), [0.0] * 3)
