"""Padded tensors give the credit and the loss of the packed batch that they stand for, however a host cuts them."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add

import pytest
import torch
from torch import Tensor

from tests.ops.batches import Case, close, known
from tests.plugins.rows_and_batches import flat_case, padded_of, part_of, to_rows
from turnwise.algorithm import PRESETS, Algorithm, Critic, Need, compute_credit, compute_loss, preset
from turnwise.batch import Scores
from turnwise.ops.weights import Counts
from turnwise.plugins.padded import Padded, padded_credit, padded_loss

NO_HOST = {
    Need.STATE_KEYS,
    Need.MERIT,
    Need.WHOLE_GROUPS,
    Need.KL_FROM_REFERENCE,
    Need.VOCABULARY_MEAN,
    Need.REWARD_HISTORY,
    Need.KL_CONTROL,
    Need.OLD_KL,
}
"""What padded tensors do not carry; hosts refuse such rows."""
ROWS = {name: preset(name) for name in PRESETS if preset(name).needs.isdisjoint(NO_HOST)}
EXTRA = {
    "turn-mean": preset("st-ppo").override({"weights": "turn-mean"}),
    "rejecting": preset("grpo").override({"mismatch": {"kind": "masked", "level": "turn", "cap": 1.3}}),
    "against-mu": preset("so-grpo").override({"ratio": {"against": "mu"}, "weights": "sequence-mean"}),
}


def loss_and_gradient(row: Algorithm, case: Case, padded: Padded, counts: Counts | None = None) -> tuple[float, Tensor]:
    log_probs = to_rows(case, case.logprob_T).requires_grad_()
    entropy = to_rows(case, known(case.scores().entropy_T))
    loss, _ = padded_loss(row, padded, log_probs, counts=counts, entropy=entropy)
    loss.total.backward()
    return float(loss.total.detach()), known(log_probs.grad)


@pytest.mark.parametrize("row", [*ROWS.values(), *EXTRA.values()], ids=[*ROWS, *EXTRA])
def test_the_padded_loss_is_the_packed_loss(row: Algorithm):
    case = flat_case(seed=3)
    batch, scores = compute_credit(row, case.batch), case.scores()
    packed = compute_loss(row.model_copy(update={"critic": Critic()}), batch, scores)
    packed.total.backward()
    padded = padded_of(case, credited=False)
    advantages = None if batch.advantage_T is None else to_rows(case, batch.advantage_T)
    total, gradient = loss_and_gradient(row, case, replace(padded, advantages=advantages))
    assert total == pytest.approx(float(packed.total.detach()), rel=1e-6)
    expected = to_rows(case, known(scores.logprob_T.grad)).nan_to_num(0.0)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_padded_credit_is_the_packed_credit(row: Algorithm):
    case = flat_case(seed=4)
    padded = padded_of(case, credited=False)
    batch = compute_credit(row, case.batch.with_(advantage_T=None))
    advantages, returns = padded_credit(row, padded)
    close(advantages[padded.mask], known(batch.advantage_T)[batch.sampled_T])
    if batch.return_T is not None:
        close(returns[padded.mask], batch.return_T[batch.sampled_T])
    assert not advantages[~padded.mask].any()


@pytest.mark.parametrize("name", ["st-ppo", "gspo", "dapo", "turn-gae", "cispo"])
@pytest.mark.parametrize("weights", ["token-mean", "turn-mean", "sequence-mean", "constant"])
def test_micro_batches_and_ranks_add_up_to_the_whole(name: str, weights: str):
    row, case = preset(name).override({"weights": weights}), flat_case(seed=5)
    padded = padded_of(case)
    total, gradient = loss_and_gradient(row, case, padded)
    counts = reduce(add, (Counts.of(part_of(padded, rows).pack()) for rows in ([0, 1, 2], [3], [4, 5])))
    log_probs = to_rows(case, case.logprob_T).requires_grad_()
    entropy = to_rows(case, known(case.scores().entropy_T))
    parts = list[float]()
    for rows in ([3], [0, 1, 2], [4, 5]):
        part = part_of(padded, rows)
        loss, _ = padded_loss(row, part, log_probs[rows], counts=counts, entropy=entropy[rows])
        loss.total.backward()
        parts.append(float(loss.total.detach()))
    assert sum(parts) == pytest.approx(total, rel=1e-6)
    torch.testing.assert_close(known(log_probs.grad), gradient, rtol=1e-6, atol=1e-9)


def test_turns_are_the_runs_of_the_mask_or_what_turn_ids_say():
    mask = torch.tensor([[1, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 0, 1]])
    batch = Padded(mask=mask).pack()
    assert batch.turn_T.tolist() == [0, 0, 1, 1, -1, 2, 2, 2, 3]
    assert (batch.sequence_K.tolist(), batch.index_K.tolist()) == ([0, 0, 2, 2], [0, 1, 0, 1])
    ids = torch.tensor([[0, 1, -1, 1, 2, -1], [-1] * 6, [-1, 0, 0, 1, -1, 1]])
    assert Padded(mask=mask, turn_ids=ids).pack().turn_T.tolist() == [0, 1, 1, 2, -1, 3, 3, 4, 4]


def test_a_reward_outside_the_mask_counts_for_the_last_sampled_token_before_it():
    mask = torch.tensor([[0, 1, 1, 0, 1, 0], [0, 0, 0, 0, 0, 0]])
    rewards = torch.tensor([[1.0, 0, 2, 4, 0, 8], [0, 0, 3, 0, 0, 1]])
    batch = Padded(mask=mask, rewards=rewards).pack()
    assert batch.reward_T.tolist() == [1.0, 6.0, 8.0, 4.0]
    assert batch.turn_T.tolist() == [0, 0, 1, -1]
    whole = Padded(mask=mask, rewards=torch.tensor([5.0, 7.0])).pack()
    assert whole.reward_T.tolist() == [0.0, 0.0, 5.0, 7.0]


def test_a_row_that_sampled_nothing_still_counts_in_its_group():
    mask = torch.tensor([[1, 1], [0, 0], [1, 0]])
    row = preset("dr-grpo")
    advantages, _ = padded_credit(row, Padded(mask=mask, rewards=torch.tensor([1.0, 0.0, 0.5]), groups=["a", "a", "b"]))
    assert advantages.tolist() == [[0.5, 0.5], [0.0, 0.0], [0.0, 0.0]]


def test_half_precision_log_probs_are_computed_in_single_precision():
    mask = torch.ones(1, 3, dtype=torch.bool)
    log_probs = torch.tensor([[-1.0, -2.0, -3.0]], dtype=torch.bfloat16).requires_grad_()
    loss, scores = padded_loss(preset("ppo"), Padded(mask=mask, advantages=torch.ones(1)), log_probs)
    assert isinstance(scores, Scores)
    assert scores.logprob_T.dtype == loss.total.dtype == torch.float32
    loss.total.backward()
    assert known(log_probs.grad).dtype == torch.bfloat16
