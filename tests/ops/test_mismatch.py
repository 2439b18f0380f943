"""Weights for the gap between sampler and trainer, and the denominators that rejected tokens leave."""

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import given
from torch import Tensor

from tests.ops import reference, reference_loss
from tests.ops.batches import Case, EpisodeShape, TurnShape, cases, close, known, make_case, ragged
from turnwise.batch import TokenBatch
from turnwise.ops.mismatch import masked, no_mismatch, truncated, veto
from turnwise.ops.weights import WEIGHTS, Counts, trajectory_tokens

WEIGHT: Mapping[str, Callable[..., Tensor]] = {"truncated": truncated, "masked": masked, "veto": veto}
LEVELS = ["token", "turn", "sequence"]
BOUNDS = {"truncated": 1.3, "masked": 1.3, "veto": 0.8}


def gaps(*of_tokens: float) -> TokenBatch:
    """A turn of two tokens and a turn of one, with these π_old / μ."""
    batch = make_case([[EpisodeShape(turns=[TurnShape(sampled=2), TurnShape(sampled=1)])]]).batch
    old_T = known(batch.mu_T).clone()
    old_T[batch.sampled_T] += torch.tensor([math.log(gap) for gap in of_tokens], dtype=torch.float64)
    return batch.with_(old_T=old_T)


def test_mismatch_weights_by_hand():
    batch = gaps(0.5, 6.0, 1.5)  # products: turns 3 and 1.5, sequence 4.5
    sampled_T = batch.sampled_T
    close(truncated(batch, cap=2.0)[sampled_T], [0.5, 2.0, 1.5])
    close(truncated(batch, cap=2.0, level="turn")[sampled_T], [2.0, 2.0, 1.5])
    close(truncated(batch, cap=5.0, level="sequence")[sampled_T], [4.5] * 3)
    close(masked(batch, cap=2.5)[sampled_T], [0.5, 0.0, 1.5])
    close(masked(batch, cap=2.5, level="turn")[sampled_T], [0.0, 0.0, 1.5])
    close(masked(batch, cap=4.0, level="sequence")[sampled_T], [0.0] * 3)
    close(veto(batch, floor=0.6, level="token")[sampled_T], [0.0, 1.0, 1.0])
    close(veto(batch, floor=0.6, level="turn")[sampled_T], [0.0, 0.0, 1.0])
    close(veto(batch, floor=0.6)[sampled_T], [0.0] * 3)
    close(veto(batch, floor=0.4)[sampled_T], [1.0] * 3)
    assert no_mismatch(batch) is None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", BOUNDS)
@ragged
@given(cases)
def test_mismatch_weights_agree_with_loops(kind: str, level: str, case: Case):
    made, batch = reference.layout(case.groups), case.batch
    option = {"floor": BOUNDS[kind]} if kind == "veto" else {"cap": BOUNDS[kind]}
    expected = reference_loss.mismatch(
        made, known(batch.old_T).tolist(), known(batch.mu_T).tolist(), kind=kind, level=level, bound=BOUNDS[kind]
    )
    close(WEIGHT[kind](batch, level=level, **option), expected, where=batch.sampled_T)


def test_equal_sampler_and_trainer_leave_weight_one():
    batch = gaps(1.0, 1.0, 1.0)
    for weight in WEIGHT.values():
        for level in LEVELS:
            close(weight(batch, level=level), [1.0] * batch.tokens)


def test_rejected_tokens_leave_every_denominator():
    batch = gaps(0.5, 6.0, 1.5)
    batch = batch.with_(mismatch_T=masked(batch, cap=2.5, level="turn"))  # rejects the first turn
    batch = batch.with_(kept_S=trajectory_tokens(batch))
    counts = Counts.of(batch)
    assert (counts.tokens, counts.turns, counts.sequences) == (1, 1, 1)
    for kind in ("token-mean", "turn-mean", "sequence-mean", "sequence-sum", "trajectory-mean", "trajectory-sum"):
        close(WEIGHTS[kind](batch, counts)[batch.sampled_T], [0.0, 0.0, 1.0])


@pytest.mark.parametrize("missing", ["mu", "old"])
def test_missing_stream_is_named(missing: str):
    batch = gaps(1.0, 1.0, 1.0).with_(**{f"{missing}_T": None})
    for weight in WEIGHT.values():
        with pytest.raises(ValueError, match=f"{missing}' is unassigned; use mismatch: none"):
            weight(batch)
