"""Batches are dealt into minibatches and cut into micro-batches; no sequence is lost, doubled or cut."""

import random
from collections import Counter
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.learn.small_learners import make_groups
from tests.ops.ranks import as_ranks
from turnwise.batch import TokenBatch
from turnwise.learn.batches import balanced, micro_batches, minibatches, share_of
from turnwise.ranks import Ranks
from turnwise.rollout.packing import pack
from turnwise.types import Group, StopReason, Trajectory

BATCH = pack(make_groups(tasks=4, size=4, seed=1))


def texts(batch: TokenBatch) -> list[tuple[int, ...]]:
    """Each sequence as its trajectory and its tokens: what must come through whole."""
    ends = batch.length_S.cumsum(0).tolist()
    starts = [end - length for end, length in zip(ends, batch.length_S.tolist(), strict=True)]
    return [
        (trajectory, *batch.ids_T[start:end].tolist())
        for trajectory, start, end in zip(batch.trajectory_S.tolist(), starts, ends, strict=True)
    ]


def test_the_example_has_trajectories_of_several_sequences_and_cut_ones() -> None:
    assert BATCH.sequences == 22
    assert max(Counter(BATCH.trajectory_S.tolist()).values()) == 3
    assert 0 < int(BATCH.truncated_S.sum()) < BATCH.sequences


@pytest.mark.parametrize(("epochs", "count"), [(1, 1), (1, 4), (3, 2), (2, 5)])
def test_every_epoch_deals_every_sequence_once_into_even_parts(epochs: int, count: int) -> None:
    parts = list(minibatches(BATCH, epochs=epochs, count=count, rng=random.Random(0)))
    assert len(parts) == epochs * count
    units = [len(part.units()) for part in parts]
    assert max(units) - min(units) <= 1
    for epoch in range(epochs):
        dealt = [text for part in parts[epoch * count : (epoch + 1) * count] for text in texts(part)]
        assert Counter(dealt) == Counter(texts(BATCH))


def test_epochs_are_shuffled_anew_and_equal_generators_deal_alike() -> None:
    first, second = (texts(part) for part in minibatches(BATCH, epochs=2, count=1, rng=random.Random(0)))
    assert first != second
    again = [texts(part) for part in minibatches(BATCH, epochs=2, count=1, rng=random.Random(0))]
    assert again == [first, second]


def test_more_parts_than_sequences_leave_no_empty_part() -> None:
    few = BATCH.select([0, 1, 2])
    parts = list(minibatches(few, epochs=2, count=8, rng=random.Random(0)))
    assert [len(part.units()) for part in parts] == [1] * (2 * len(few.units()))


@pytest.mark.parametrize("tokens", [1, 50, 10_000])
def test_episodes_without_a_token_never_make_a_part_of_their_own(tokens: int) -> None:
    silent = [Trajectory(id=f"silent/{n}", turns=[], stop=StopReason.CONTEXT_FULL, truncated=True) for n in range(3)]
    spoken = make_groups(tasks=1, size=4, seed=1)[0].trajectories
    order = [silent[0], spoken[0], silent[1], *spoken[1:], silent[2]]
    batch = pack([Group(id="mixed", trajectories=order)])
    assert 0 in batch.length_S.tolist()
    micro = list(micro_batches(batch, tokens=tokens))
    assert [text for part in micro for text in texts(part)] == texts(batch)
    mini = list(minibatches(batch, epochs=1, count=batch.sequences, rng=random.Random(0)))
    assert all(part.tokens for part in (*micro, *mini))


@settings(max_examples=40, deadline=None)
@given(tokens=st.integers(1, 400))
def test_micro_batches_keep_order_whole_sequences_and_whole_trajectories(tokens: int) -> None:
    parts = list(micro_batches(BATCH, tokens=tokens))
    assert [text for part in parts for text in texts(part)] == texts(BATCH)
    owners = [set(part.trajectory_S.tolist()) for part in parts]
    assert sum(len(owner) for owner in owners) == len(set.union(*owners))  # nobody's sequences lie in two parts
    for part, owner in zip(parts, owners, strict=True):
        assert part.tokens <= tokens or len(owner) == 1


def test_micro_batches_are_filled_as_far_as_they_go() -> None:
    parts = list(micro_batches(BATCH, tokens=100))
    firsts = [next(micro_batches(part, tokens=1)).tokens for part in parts]
    full = [part.tokens + after > 100 for part, after in zip(parts, firsts[1:], strict=False)]
    assert len(parts) > 3
    assert all(full)


def test_a_batch_that_fits_is_not_copied() -> None:
    (only,) = micro_batches(BATCH, tokens=BATCH.tokens)
    assert only is BATCH


@given(st.integers(1, 5), st.integers(1, 400), st.integers(0, 5))
@settings(derandomize=True, deadline=None, max_examples=40, database=None)
def test_no_split_separates_what_belongs_together(count: int, tokens: int, seed: int) -> None:
    for batch in (BATCH, BATCH.with_(unit_S=BATCH.group_S)):
        whole = _members(batch)
        for part in minibatches(batch, epochs=1, count=count, rng=random.Random(seed)):
            for small in (part, *micro_batches(part, tokens=tokens)):
                assert all(rows == whole[unit] for unit, rows in _members(small).items())


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_never_share_a_unit_and_miss_none(size: int) -> None:
    groups = make_groups(tasks=4, size=4, seed=1)

    def deal(ranks: Ranks) -> list[list[tuple[str, ...]]]:
        batch = share_of(pack(groups), ranks)
        batch = batch.with_(unit_S=batch.group_S)
        parts = minibatches(batch, epochs=1, count=2, rng=random.Random(3), ranks=ranks)
        return [[_names(part.select(unit)) for unit in part.units()] for part in parts]

    dealt = as_ranks([deal] * size)
    whole = pack(groups)
    whole = whole.with_(unit_S=whole.group_S)
    alone = [
        [_names(part.select(unit)) for unit in part.units()]
        for part in minibatches(whole, epochs=1, count=2, rng=random.Random(3))
    ]
    for number, units in enumerate(alone):
        assert Counter(units) == Counter(unit for rank in dealt for unit in rank[number])


@given(st.lists(st.integers(0, 500), max_size=20), st.integers(1, 5))
@settings(derandomize=True, deadline=None, max_examples=100, database=None)
def test_shares_are_balanced_and_miss_no_item(sizes: list[int], shares: int) -> None:
    dealt = balanced(sizes, shares)
    assert len(dealt) == shares
    assert sorted(item for share in dealt for item in share) == list(range(len(sizes)))
    totals = [sum(sizes[item] for item in share) for share in dealt]
    assert max(totals) <= sum(sizes) / shares + max(sizes, default=0)
    assert all(share == sorted(share) for share in dealt)


def test_shares_follow_tokens_not_places() -> None:
    assert balanced([5, 3, 3, 2, 2], 2) == [[0, 3], [1, 2, 4]]
    assert balanced([1, 1, 1, 9], 2) == [[3], [0, 1, 2]]  # contiguous blocks would have 2 and 10
    assert balanced([4, 2], 1) == [[0, 1]]


def test_a_share_holds_whole_groups_and_knows_what_the_whole_batch_knows() -> None:
    groups = make_groups(tasks=2, size=2, seed=1)
    for turn in (turn for each in groups[0].trajectories for turn in each.turns):
        turn.logprobs = None  # an expert's: the sampler is unknown
    shares = as_ranks([partial(share_of, pack(groups))] * 3)
    assert sorted(share.tokens for share in shares)[0] == 0
    assert sum(share.tokens for share in shares) == pack(groups).tokens
    assert all(len(set(share.group_S.tolist())) <= 1 for share in shares)
    assert all(share.mu_T is not None for share in shares)


def _members(batch: TokenBatch) -> dict[int, Counter[tuple[int, ...]]]:
    """The sequences of each unit, by the number that survives every split."""
    number_S = batch.trajectory_S if batch.unit_S is None else batch.unit_S
    members: dict[int, Counter[tuple[int, ...]]] = {}
    for unit, text in zip(number_S.tolist(), texts(batch), strict=True):
        members.setdefault(unit, Counter())[text] += 1
    return members


def _names(batch: TokenBatch) -> tuple[str, ...]:
    return tuple(batch.trajectory_names[row] for row in batch.trajectory_S.tolist())
