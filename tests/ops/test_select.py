"""`TokenBatch.select`, the only way to split a batch."""

import random
from collections.abc import Collection
from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.ops.batches import Case, EpisodeShape, TurnShape, cases, make_case, make_groups, ragged, random_case
from turnwise.batch import TokenBatch
from turnwise.ops.advantages import gae
from turnwise.rollout.packing import pack
from turnwise.types import Group


def tensors(batch: TokenBatch) -> dict[str, Tensor]:
    """Every assigned tensor of a batch by name."""
    found = {item.name: getattr(batch, item.name) for item in fields(batch)}
    return {name: value for name, value in {**found, **batch.extra_T}.items() if isinstance(value, Tensor)}


def same(first: TokenBatch, second: TokenBatch, *, but: Collection[str] = ()) -> None:
    """Assert that two batches hold the same tensors, bit for bit (NaN equals NaN)."""
    left, right = tensors(first), tensors(second)
    assert left.keys() == right.keys()
    for name in left.keys() - set(but):
        torch.testing.assert_close(left[name], right[name], rtol=0, atol=0, equal_nan=True, msg=name)


def test_select_by_hand():
    # Sequence 0: prompt 1, turn of 2. Sequence 1: an empty turn, then a turn of 1. Sequence 2: prompt 1, turn of 1.
    shapes = [
        EpisodeShape(turns=[TurnShape(sampled=2)]),
        EpisodeShape(turns=[TurnShape(sampled=0, prompt=0), TurnShape(sampled=1)]),
        EpisodeShape(turns=[TurnShape(sampled=1)]),
    ]
    batch = make_case([shapes]).batch
    assert batch.turn_T.tolist() == [-1, 0, 0, -1, 2, -1, 3]
    part = batch.select([2, 1])
    assert part.ids_T.tolist() == batch.ids_T[[5, 6, 3, 4]].tolist()
    assert part.turn_T.tolist() == [-1, 0, -1, 2]
    assert part.sequence_T.tolist() == [0, 0, 1, 1]
    assert part.sequence_K.tolist() == [0, 1, 1]
    assert part.index_K.tolist() == [0, 0, 1]
    assert part.index_T.tolist() == [-1, 0, -1, 1]
    assert part.trajectory_S.tolist() == [2, 1]
    assert part.trajectory_names == batch.trajectory_names


@ragged
@given(cases)
def test_selecting_everything_changes_nothing(case: Case):
    batch = case.batch.with_(extra_T={"teacher": case.logprob_T})
    same(batch.select(range(batch.sequences)), batch)


@ragged
@given(cases, st.randoms(use_true_random=False))
def test_every_sequence_arrives_whole_and_in_the_asked_order(case: Case, rng: random.Random):
    batch = case.batch
    order = rng.sample(range(batch.sequences), rng.randint(0, batch.sequences))
    part = batch.select(order)
    assert part.length_S.tolist() == [int(batch.length_S[sequence]) for sequence in order]
    for place, sequence in enumerate(order):
        same(part.select([place]), batch.select([sequence]))
        mine = batch.sequence_T == sequence
        assert part.ids_T[part.sequence_T == place].tolist() == batch.ids_T[mine].tolist()
        assert part.index_T[part.sequence_T == place].tolist() == batch.index_T[mine].tolist()
    sampled = part.turn_T[part.sampled_T]
    assert part.sequence_K[sampled].tolist() == part.sequence_T[part.sampled_T].tolist()


@ragged
@given(cases, st.randoms(use_true_random=False))
def test_selecting_twice_is_selecting_the_composed_order(case: Case, rng: random.Random):
    first = rng.sample(range(case.batch.sequences), rng.randint(1, case.batch.sequences))
    second = rng.sample(range(len(first)), rng.randint(1, len(first)))
    same(case.batch.select(first).select(second), case.batch.select([first[place] for place in second]))


def test_selecting_a_trajectory_is_packing_it_alone():
    case = random_case(8, groups=2)
    for number, group in enumerate(case.groups):
        for trajectory in group.trajectories:
            row = case.batch.trajectory_names.index(trajectory.id)
            part = case.batch.select((case.batch.trajectory_S == row).nonzero().squeeze(1))
            alone = pack([Group(id=group.id, trajectories=[trajectory])], dtype=torch.float64)
            assert part.group_S.unique().tolist() == [number]
            bare = part.with_(old_T=None, old_uniform_T=None, old_kl_T=None)
            bare = bare.with_(ref_T=None, value_T=None, advantage_T=None)
            # Names and the numbers that refer to them are those of the whole batch.
            same(bare, alone, but={"trajectory_S", "group_S", "seat_S", "anchor_K"})


def test_selection_leaves_the_batch_alone():
    batch = random_case(1).batch
    before = {name: tensor.clone() for name, tensor in tensors(batch).items()}
    batch.select([1, 0])
    for name, tensor in tensors(batch).items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)


def test_credit_of_a_trajectory_torn_apart_is_refused():
    turns = [TurnShape(), TurnShape(restarts=True)]
    batch = make_case([[EpisodeShape(turns=turns), EpisodeShape()]]).batch
    assert batch.sequences == 3
    with pytest.raises(ValueError, match="are not adjacent; compute credit on the whole batch"):
        gae(batch.select([0, 2, 1]))


def test_a_sequence_may_be_selected_more_than_once():
    batch = pack(make_groups([[EpisodeShape(turns=[TurnShape(), TurnShape()]), EpisodeShape()]]), dtype=torch.float64)
    part = batch.select([0, 1, 0])
    same(part.select([0]), batch.select([0]))
    same(part.select([2]), batch.select([0]))


def test_a_mask_is_not_taken_for_row_numbers():
    batch = random_case(1).batch
    with pytest.raises(ValueError, match="row numbers"):
        batch.select(torch.ones(batch.sequences, dtype=torch.bool))
