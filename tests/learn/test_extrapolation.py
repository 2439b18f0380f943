"""A learner that extrapolates: from the right weights, after all updates, in any precision."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.learn.small_learners import SETTINGS, make_groups, make_learner, make_policy, moved, row, weights
from tests.train.small_runs import LostMachineError, Stopping, last_tensors, run, timeless
from turnwise.learn.learner import Learner

ALPHA = 0.5
EXTRAPOLATE: dict[str, Any] = {"kind": "parameters", "alpha": ALPHA}


def learn(learner: Learner, step: int) -> dict[str, float]:
    batch = learner.prepare(make_groups(seed=step))
    assert batch is not None
    return learner.learn(batch, step).metrics


def test_the_change_is_added_to_what_the_updates_gave_and_starts_from_the_unextrapolated_weights() -> None:
    learner, plain = make_learner("rebn", extrapolate=EXTRAPOLATE), make_learner("rebn")
    first = weights(learner)
    learn(learner, 1)
    learn(plain, 1)
    updated = weights(plain)
    for name, weight in weights(learner).items():
        torch.testing.assert_close(weight, updated[name] + ALPHA * (updated[name] - first[name]))
    # The same updates from the extrapolated weights: step 2 begins there, and remembers what step 1 had learnt.
    with torch.no_grad():
        for name, parameter in plain.policy.trainable().items():
            parameter.copy_(learner.policy.trainable()[name])
    metrics = learn(learner, 2)
    learn(plain, 2)
    again, norm = weights(plain), 0.0
    for name, weight in weights(learner).items():
        change = ALPHA * (again[name] - updated[name])
        torch.testing.assert_close(weight, again[name] + change)
        norm += float(change.square().sum())
    assert metrics["train/extrapolated"] == pytest.approx(norm**0.5, rel=1e-4)


def test_nothing_is_added_where_the_guard_refused_every_update() -> None:
    learner = make_learner("rebn", extrapolate=EXTRAPOLATE)
    learn(learner, 1)
    before, batch = weights(learner), learner.prepare(make_groups(seed=2))
    assert batch is not None
    assert "train/extrapolated" not in learner.learn(batch, 2, lambda **_: False).metrics
    assert moved(before, weights(learner)) == set()


def test_an_alpha_of_zero_is_no_extrapolation() -> None:
    still, plain = make_learner("rebn", extrapolate={"kind": "parameters", "alpha": 0.0}), make_learner("rebn")
    assert [learn(still, step) for step in (1, 2)] == [learn(plain, step) for step in (1, 2)]
    assert moved(weights(still), weights(plain)) == set()


@pytest.mark.parametrize("masters", ["residual", "fp32", "stochastic"])
def test_half_precision_weights_move_as_single_precision_ones_do(masters: Any) -> None:
    train = SETTINGS.model_copy(update={"masters": masters})
    changes = {"extrapolate": EXTRAPOLATE}
    half = Learner(make_policy(dtype=torch.bfloat16), row("rebn", changes), train)
    start = dict(half.optimizer.wide_weights())
    for step in (1, 2):
        learn(half, step)
    assert half.extrapolation is not None
    now = dict(half.optimizer.wide_weights())
    for name, before in half.extrapolation.before.items():
        assert not torch.equal(before, start[name])
        assert not torch.equal(before, now[name])
        torch.testing.assert_close(half.policy.trainable()[name].float(), now[name], rtol=0.01, atol=1e-6)


CHANGES: dict[str, Any] = {
    "algorithm": {"preset": "rebn", "extrapolate": EXTRAPOLATE},
    "train": {"steps": 4},
    "checkpoint": {"every": 1},
}


def test_a_run_that_was_cut_off_ends_with_the_same_bits(tmp_path: Path) -> None:
    run(tmp_path / "whole", CHANGES)
    with pytest.raises(LostMachineError):
        run(tmp_path / "cut", CHANGES, console=Stopping(after=2))
    run(tmp_path / "cut")
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    found = last_tensors(tmp_path / "whole")
    assert "resume/extrapolation.safetensors" in found
    assert last_tensors(tmp_path / "cut") == found


def test_a_run_samples_from_the_extrapolated_weights(tmp_path: Path) -> None:
    run(tmp_path / "run", {**CHANGES, "algorithm": {**CHANGES["algorithm"], "epochs": 1}})
    rows = timeless(tmp_path / "run")
    assert all(row["train/extrapolated"] > 0.01 for row in rows)
    assert all(row["loss/sampler_kl"] < 1e-8 for row in rows)  # with one update, the learner's policy is the sampler
