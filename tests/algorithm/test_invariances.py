"""The loss and its gradient do not depend on how the batch was cut, ordered or spread over ranks."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.ops.batches import Case, assign, cases, ragged, random_case
from tests.ops.ranks import on_ranks
from turnwise.algorithm import PRESETS, Algorithm, Need, Trait, compute_credit, compute_loss, preset
from turnwise.batch import Scores, TokenBatch
from turnwise.ops.weights import Counts
from turnwise.ranks import Reduce, alone
from turnwise.types import Group, Trajectory

EXTRA = {
    "masked-turns": preset("st-ppo").override({"mismatch": {"kind": "masked", "level": "turn", "cap": 1.3}}),
    "vetoed-sequences": preset("ppo").override({"mismatch": {"kind": "veto", "floor": 0.7}, "weights": "turn-mean"}),
    "turn-critic": preset("turn-gae").override({"critic": {"loss": "huber"}, "ratio": "turn"}),
    "rejected-trajectories": preset("grpo").override({"mismatch": {"kind": "masked", "level": "turn", "cap": 1.3}}),
    "sequences": preset("grpo").override({"weights": "sequence-mean"}),
    "straight-through": preset("gspo").override({"ratio": {"gradient": "straight-through"}, "epochs": 2}),
}
PARTS = "tests.algorithm.leveled_parts"
LEVELS = {
    "terms of turns": preset("grpo").override({"surrogate": f"{PARTS}:turn_likelihood"}),
    "terms of sequences": preset("ppo").override({"surrogate": f"{PARTS}:sequence_likelihood", "ratio": "token"}),
    "terms of groups": Algorithm.of({"surrogate": f"{PARTS}:preferred", "weights": "unit-mean"}),
    "penalties of groups": preset("st-ppo").override({"regularizers": [f"{PARTS}:lopsided", "entropy"]}),
}
ROWS = {**{name: preset(name) for name in PRESETS}, **EXTRA, **LEVELS}
ALL = sorted(ROWS)

STREAMS = ("mu_T", "old_T", "old_uniform_T", "old_kl_T", "ref_T", "value_T")
"""What scoring assigns to every token."""


def gradient(
    row: Algorithm, credited: TokenBatch, logprob_T: Tensor, value_T: Tensor, counts: Counts | None = None
) -> tuple[float, Tensor]:
    """Total loss and its derivative by every token's log-prob and value."""
    logprob_T, value_T = logprob_T.clone().requires_grad_(), value_T.clone().requires_grad_()
    entropy_T = torch.where(credited.sampled_T, logprob_T * 0.5 + 2, 0)
    kl_T = torch.where(credited.sampled_T, 1 - 0.3 * logprob_T, 0)
    uniform_T = None if credited.old_uniform_T is None else credited.old_uniform_T * 1.1 - logprob_T.detach() ** 2
    scores = Scores(logprob_T=logprob_T, value_T=value_T, entropy_T=entropy_T, reverse_kl_T=kl_T, uniform_T=uniform_T)
    loss = compute_loss(row, credited, scores, counts=counts)
    loss.total.backward()
    value_grad_T = value_T.grad if value_T.grad is not None else torch.zeros_like(value_T)
    assert logprob_T.grad is not None
    return float(loss.total.detach()), torch.stack([logprob_T.grad, value_grad_T], dim=1)


def whole(row: Algorithm, case: Case) -> tuple[float, Tensor]:
    """The batch in one piece on one rank."""
    assert case.batch.value_T is not None
    return gradient(row, compute_credit(row, case.batch), case.logprob_T, case.batch.value_T)


def tokens_of(case: Case, part: TokenBatch) -> Tensor:
    """Rows of the whole batch that the part's tokens came from, by trajectory, sequence order and position."""
    keys = _keys(case.batch)
    place = {key: row for row, key in enumerate(keys)}
    return torch.tensor([place[key] for key in _keys(part)], dtype=torch.long)


def _keys(batch: TokenBatch) -> list[tuple[str, int, int]]:
    # A trajectory's sequences differ in the place of their first turn; a sequence without turns is alone.
    first_S = [0] * batch.sequences
    for turn in range(batch.turns - 1, -1, -1):
        first_S[int(batch.sequence_K[turn])] = int(batch.index_K[turn])
    return [
        (batch.trajectory_names[int(batch.trajectory_S[s])], first_S[s], int(position))
        for s, position in zip(batch.sequence_T.tolist(), batch.position_T.tolist(), strict=True)
    ]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", [0, 1])
def test_micro_batches_add_up_to_the_whole(name: str, seed: int) -> None:
    row, case = ROWS[name], random_case(seed)
    expected, expected_grad = whole(row, case)
    credited = compute_credit(row, case.batch)
    counts = Counts.of(credited)
    # Terms of single sequences hold however trajectories are cut; terms that look beyond them ask for whole units.
    looks_ahead = Need.VOCABULARY_MEAN in row.needs
    by_unit = looks_ahead or Need.WHOLE_GROUPS in row.needs or Trait.PER_UNIT in row.facts("surrogate")
    order = credited.units() if by_unit else [[each] for each in range(credited.sequences)]
    random.Random(seed).shuffle(order)
    total, total_grad = 0.0, torch.zeros_like(expected_grad)
    for start in range(0, len(order), 2):
        part = credited.select([each for unit in order[start : start + 2] for each in unit])
        rows = tokens_of(case, part)
        assert part.value_T is not None
        loss, grad = gradient(row, part, case.logprob_T[rows], part.value_T, counts)
        total += loss
        total_grad[rows] += grad
    assert total == pytest.approx(expected, rel=1e-9, abs=1e-12)
    torch.testing.assert_close(total_grad, expected_grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_ranks_add_up_to_the_whole(name: str) -> None:
    row, case = ROWS[name], random_case(3, groups=4)
    expected, expected_grad = whole(row, case)
    group_S = case.batch.group_S
    shards = [(group_S % 2 == rank).nonzero().squeeze(1) for rank in range(2)]

    def work(sequences: Tensor, reduce: Reduce) -> tuple[float, Tensor, Tensor]:
        part = compute_credit(row, case.batch.select(sequences), reduce=reduce)
        counts = Counts.of(part).over_ranks(reduce)
        rows = tokens_of(case, part)
        assert part.value_T is not None
        return *gradient(row, part, case.logprob_T[rows], part.value_T, counts), rows

    results = on_ranks([partial(work, sequences) for sequences in shards])
    grad = torch.zeros_like(expected_grad)
    for _, part_grad, rows in results:
        grad[rows] += part_grad
    assert sum(loss for loss, _, _ in results) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-8, atol=1e-12)


def rearranged(case: Case, groups: list[Group]) -> Case:
    """The same trajectories packed in another arrangement, every token with the streams it had."""
    fresh = assign(groups).batch
    rows = tokens_of(case, fresh)
    batch = case.batch
    assert batch.mu_T is not None and batch.old_T is not None  # noqa: PT018
    assert batch.ref_T is not None and batch.value_T is not None  # noqa: PT018
    streams = {name: getattr(batch, name)[rows] for name in STREAMS}
    return replace(case, groups=groups, batch=fresh.with_(**streams), logprob_T=case.logprob_T[rows])


@pytest.mark.parametrize("name", ALL)
def test_packing_order_and_order_inside_a_group_do_not_matter(name: str) -> None:
    row, case = ROWS[name], random_case(5)
    expected, expected_grad = whole(row, case)
    rng = random.Random(0)
    groups = [replace(g, trajectories=rng.sample(g.trajectories, len(g.trajectories))) for g in case.groups]
    rng.shuffle(groups)
    shuffled = rearranged(case, groups)
    loss, grad = whole(row, shuffled)
    assert loss == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(grad, expected_grad[tokens_of(case, shuffled.batch)], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_environment_tokens_change_nothing(name: str) -> None:
    row, case = ROWS[name], random_case(7)
    expected, expected_grad = whole(row, case)

    def longer(trajectory: Trajectory) -> Trajectory:
        turns = [replace(turn, prompt_ids=[*turn.prompt_ids, 9, 9, 9]) for turn in trajectory.turns]
        return replace(trajectory, turns=turns)

    groups = [replace(g, trajectories=[longer(t) for t in g.trajectories]) for g in case.groups]
    fresh = assign(groups).batch
    # Sampled tokens keep their order, so their streams can be moved over one by one; all else is noise.
    streams = {}
    for stream in STREAMS:
        values_T = torch.full((fresh.tokens,), 123.0, dtype=torch.float64)
        values_T[fresh.sampled_T] = getattr(case.batch, stream)[case.batch.sampled_T]
        streams[stream] = values_T
    logprob_T = torch.full((fresh.tokens,), -77.0, dtype=torch.float64)
    logprob_T[fresh.sampled_T] = case.logprob_T[case.batch.sampled_T]
    padded = replace(case, groups=groups, batch=fresh.with_(**streams), logprob_T=logprob_T)
    loss, grad = whole(row, padded)
    assert loss == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(grad[fresh.sampled_T], expected_grad[case.batch.sampled_T], rtol=1e-12, atol=0)
    assert float(grad[~fresh.sampled_T].abs().sum()) == 0


@pytest.mark.parametrize("name", ALL)
@settings(ragged, max_examples=15)  # the same for each of all rows; the parts have their own properties in tests/ops
@given(case=cases)
def test_any_ragged_batch_gives_a_finite_loss(name: str, case: Case) -> None:
    loss, grad = whole(ROWS[name], case)
    assert torch.isfinite(torch.tensor(loss))
    assert bool(torch.isfinite(grad).all())


@ragged
@given(case=cases, name=st.sampled_from(ALL), bad=st.sampled_from([float("nan"), float("inf"), float("-inf")]))
def test_a_bad_log_prob_is_an_error_that_names_trajectory_and_turn(case: Case, name: str, bad: float) -> None:
    sampled = case.batch.sampled_T.nonzero().squeeze(1)
    if not len(sampled):
        return
    token = int(sampled[-1])
    logprob_T = case.logprob_T.clone()
    logprob_T[token] = bad
    place = case.batch.place(token)
    credited = compute_credit(ROWS[name], case.batch, reduce=alone)
    with pytest.raises(ValueError, match="log-prob is") as raised:
        compute_loss(ROWS[name], credited, replace(case, logprob_T=logprob_T).scores())
    assert place in str(raised.value)


def test_a_batch_without_sampled_tokens_has_zero_loss() -> None:
    case = random_case(0)
    nothing = case.batch.with_(turn_T=torch.full_like(case.batch.turn_T, -1))
    scores = replace(case.scores(), reverse_kl_T=torch.ones_like(case.logprob_T))  # some rows read it
    for name in ALL:
        credited = compute_credit(ROWS[name], nothing)
        assert float(compute_loss(ROWS[name], credited, scores).total.detach()) == 0
