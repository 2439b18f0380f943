"""Token weights: the means, their denominators, and their sums."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given

from tests.ops import reference, reference_loss
from tests.ops.batches import Case, EpisodeShape, TurnShape, cases, close, make_case, ragged, random_case
from turnwise.batch import TokenBatch
from turnwise.ops.weights import (
    WEIGHTS,
    Counts,
    constant,
    sequence_mean,
    sequence_sum,
    token_mean,
    trajectory_mean,
    trajectory_sum,
    trajectory_tokens,
    turn_mean,
)

KINDS = list(WEIGHTS)
PLAIN, REWRITTEN = TurnShape(sampled=2), TurnShape(sampled=2, restarts=True)


def with_rejections(case: Case) -> TokenBatch:
    """Reject about a third of the tokens."""
    draws_T = torch.rand(case.batch.tokens, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    batch = case.batch.with_(mismatch_T=torch.where(draws_T < 0.35, 0, draws_T))
    return batch.with_(kept_S=trajectory_tokens(batch))


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


def test_a_rewritten_history_gives_a_trajectory_no_more_weight_than_its_neighbour():
    rewritten = EpisodeShape(turns=[PLAIN, REWRITTEN, REWRITTEN])
    batch = make_case([[rewritten, EpisodeShape(turns=[PLAIN, PLAIN, PLAIN])]]).batch
    counts = Counts.of(batch)
    assert (counts.sequences, counts.trajectories) == (4, 2)
    for kind in ("trajectory-mean", "trajectory-sum", "constant"):
        weight_T = WEIGHTS[kind](batch, counts)
        assert float(weight_T[batch.sampled_T].unique().numel()) == 1, kind
    assert float(trajectory_mean(batch, counts)[batch.sequence_T == 3].sum()) == pytest.approx(1 / 2)
    assert float(sequence_mean(batch, counts)[batch.sequence_T == 3].sum()) == pytest.approx(1 / 4)
    close(trajectory_sum(batch, counts)[batch.sampled_T], [0.5] * 12)
    close(constant(batch, counts, length=10.0)[batch.sampled_T], [0.05] * 12)


def test_without_rewritten_histories_trajectories_and_sequences_weigh_the_same_to_the_bit():
    turns = [[TurnShape(sampled=size) for size in sizes] for sizes in ((3, 1), (1, 0, 7), (2,), (5, 5, 5))]
    batch = make_case([[EpisodeShape(turns=each) for each in turns]]).batch
    counts = Counts.of(batch)
    assert counts.trajectories == counts.sequences == 4
    assert torch.equal(trajectory_mean(batch, counts), sequence_mean(batch, counts))
    assert torch.equal(trajectory_sum(batch, counts), sequence_sum(batch, counts))


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


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.endswith("-mean")])
def test_means_sum_to_one(kind: str):
    batch = with_rejections(random_case(9))
    assert float(WEIGHTS[kind](batch, Counts.of(batch)).sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_micro_batches_under_global_counts_are_those_of_the_whole(kind: str):
    batch = with_rejections(random_case(6))
    whole_T = WEIGHTS[kind](batch, Counts.of(batch))
    rows = batch.units() if kind == "unit-mean" else [[sequence] for sequence in range(batch.sequences)]
    parts = [batch.select(chosen) for chosen in rows]
    counts = Counts(tokens=0, turns=0, sequences=0, trajectories=0, units=0)
    for part in parts:
        counts = counts + Counts.of(part)
    units = counts.units if kind == "unit-mean" else Counts.of(batch).units  # a split unit counts in both parts
    assert replace(counts, units=units) == replace(Counts.of(batch), trajectories=counts.trajectories)
    assert counts.trajectories == pytest.approx(Counts.of(batch).trajectories, rel=1e-12)
    close(torch.cat([WEIGHTS[kind](part, counts) for part in parts]), whole_T)


def test_nothing_sampled_gives_zero_weights_and_not_nan():
    batch = make_case([[EpisodeShape(turns=[TurnShape(prompt=3, sampled=0)])]]).batch
    for kind in KINDS:
        close(WEIGHTS[kind](batch, Counts.of(batch)), [0.0] * 3)
