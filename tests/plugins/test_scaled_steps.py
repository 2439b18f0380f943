"""The row's step scale shrinks one optimiser step in a host: the step, not the gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.ops.ranks import on_ranks
from tests.plugins.rows_and_batches import ST_GRPO, host_tensors
from turnwise.ops.weights import Counts
from turnwise.plugins.padded import Padded, padded_loss
from turnwise.plugins.scaled_steps import ScaledSteps
from turnwise.ranks import Reduce, alone


def trained(steps: ScaledSteps | None, optimizer: torch.optim.Optimizer, weight: Tensor, repeats: int = 2) -> Tensor:
    """The weight after some steps of a model that adds it to every log-prob."""
    for seed in range(repeats):
        tensors = host_tensors(seed)
        padded = Padded(mask=tensors["mask"], old=tensors["old"], advantages=tensors["advantages"])
        loss, scores = padded_loss(ST_GRPO, padded, tensors["log_probs"].detach() + weight)
        if steps is not None:
            steps.observe(loss, scores)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    return weight.detach().clone()


@pytest.mark.parametrize("shown", [True, False], ids=["its own optimiser", "any optimiser"])
def test_a_step_is_scaled_and_the_rate_comes_back(shown: bool):
    weight = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    plain = trained(None, optimizer, weight, repeats=1)
    weight.data.zero_()
    steps = ScaledSteps(ST_GRPO, reduce=alone, optimizer=optimizer if shown else None)
    scaled = trained(steps, optimizer, weight, repeats=1)
    assert steps.last is not None
    assert 0 < steps.last.value < 1
    assert float(scaled) == pytest.approx(float(plain) * steps.last.value, rel=1e-5)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert steps.metrics()["turnwise/scale"] == steps.last.value


def test_a_step_without_losses_of_ours_is_left_alone():
    steps = ScaledSteps(ST_GRPO, reduce=alone)
    other = torch.ones((), requires_grad=True)
    other.grad = torch.ones(())
    torch.optim.SGD([other], lr=0.5).step()
    assert (float(other.detach()), steps.last) == (0.5, None)


def test_a_row_without_a_scale_has_no_factor():
    steps = ScaledSteps(ST_GRPO.override({"scale": "none"}), reduce=alone)
    assert (steps.finish(), steps.metrics()) == (1.0, {})


@pytest.mark.parametrize("scale", ["clip-bias", {"kind": "drift", "measure": "clips"}], ids=["clip-bias", "drift"])
def test_micro_batches_and_processes_are_measured_together(scale: object):
    row, tensors = ST_GRPO.override({"scale": scale}), host_tensors()
    counts = Counts.of(Padded(mask=tensors["mask"]).pack())

    def factor(shares: list[list[int]], reduce: Reduce) -> float:
        steps = ScaledSteps(row, reduce=reduce)
        for rows in shares:
            mask, old, advantages = (tensors[name][rows] for name in ("mask", "old", "advantages"))
            log_probs = tensors["log_probs"][rows].detach().requires_grad_()
            steps.observe(
                *padded_loss(row, Padded(mask=mask, old=old, advantages=advantages), log_probs, counts=counts)
            )
        return steps.finish()

    whole = factor([[0, 1, 2, 3]], alone)
    assert 0 < whole < 1
    assert factor([[2], [0, 3], [1]], alone) == pytest.approx(whole, rel=1e-5)
    ranked = on_ranks([lambda reduce: factor([[0], [1]], reduce), lambda reduce: factor([[2, 3]], reduce)])
    assert ranked == [pytest.approx(whole, rel=1e-5)] * 2
