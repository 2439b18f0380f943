"""token_ratios: the ratio and the clip of single tokens, as the loss sees them."""

from __future__ import annotations

import math

import pytest
import torch

from tests.ops.batches import EpisodeShape, TurnShape, make_case
from turnwise.algorithm import compute_credit, compute_loss, preset
from turnwise.algorithm.objective import token_ratios
from turnwise.batch import Scores

CASE = make_case([[EpisodeShape(turns=[TurnShape(sampled=2), TurnShape(sampled=1, reward=1.0)])]])
STEPS = torch.tensor([0.3, -0.1, 0.05], dtype=torch.float64)
"""How far the log-probs of the three sampled tokens have moved."""


def moved() -> torch.Tensor:
    assert CASE.batch.old_T is not None
    logprob_T = CASE.batch.old_T.clone()
    logprob_T[CASE.batch.sampled_T] += STEPS
    return logprob_T


@pytest.mark.parametrize(
    ("ratio", "logs", "clipped"),
    [
        ("token", [0.3, -0.1, 0.05], [True, False, False]),
        ("turn", [0.1, 0.1, 0.05], [False, False, False]),
        ("sequence", [0.25 / 3] * 3, [False, False, False]),
    ],
)
def test_ratio_and_clip_follow_the_row(ratio: str, logs: list[float], clipped: list[bool]) -> None:
    row = preset("reinforce").override({"ratio": ratio, "surrogate": "ppo-clip"})
    batch = compute_credit(row, CASE.batch)
    ratio_T, clipped_T = token_ratios(row, batch, moved())
    assert ratio_T[batch.sampled_T].tolist() == pytest.approx([math.exp(log) for log in logs])
    assert clipped_T[batch.sampled_T].tolist() == clipped
    assert set(ratio_T[~batch.sampled_T].tolist()) == {1.0}
    assert not bool(clipped_T[~batch.sampled_T].any())


def test_it_counts_what_the_diagnostics_of_the_loss_count() -> None:
    row = preset("reinforce").override({"ratio": "token", "surrogate": "ppo-clip"})
    batch = compute_credit(row, CASE.batch)
    totals = compute_loss(row, batch, Scores(logprob_T=moved())).table.totals()
    ratio_T, clipped_T = token_ratios(row, batch, moved())
    assert float(ratio_T[batch.sampled_T].mean()) == pytest.approx(totals["loss/ratio_mean"])
    assert float(clipped_T[batch.sampled_T].double().mean()) == pytest.approx(totals["loss/clip_fraction"])


def test_a_batch_without_advantages_is_refused() -> None:
    with pytest.raises(ValueError, match="run compute_credit first"):
        token_ratios(preset("ppo"), CASE.batch.with_(advantage_T=None), moved())
