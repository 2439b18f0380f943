"""AdamW with named state: what torch does, tiny steps on half-precision weights, and an exact continuation."""

import pytest
import torch
from torch import Tensor, nn

from turnwise.learn.encodings import join
from turnwise.learn.optimizer import Optimizer

BETAS = (0.9, 0.95)


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    noise = torch.Generator().manual_seed(0)
    shapes = {"wide": (3, 5), "flat": (7,)}
    return {name: nn.Parameter(torch.randn(shape, generator=noise).to(dtype)) for name, shape in shapes.items()}


def set_gradients(named: dict[str, nn.Parameter], *, seed: int, size: float = 1.0) -> None:
    noise = torch.Generator().manual_seed(seed)
    for parameter in named.values():
        parameter.grad = (torch.randn(parameter.shape, generator=noise) * size).to(parameter.dtype)


def values(named: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in named.items()}


def test_single_precision_weights_move_as_torch_moves_them() -> None:
    mine, theirs = parameters(), parameters()
    optimizer = Optimizer(mine, betas=BETAS, weight_decay=0.1)
    torch_optimizer = torch.optim.AdamW(theirs.values(), lr=0.01, betas=BETAS, weight_decay=0.1)
    for seed in range(3):
        set_gradients(mine, seed=seed)
        set_gradients(theirs, seed=seed)
        optimizer.step(0.01)
        torch_optimizer.step()
    for name, parameter in mine.items():
        assert torch.equal(parameter, theirs[name])


def test_half_precision_weights_move_by_steps_that_they_cannot_hold_one_by_one() -> None:
    weight = {"one": nn.Parameter(torch.ones(1, dtype=torch.bfloat16))}  # the next number below 1 is 1 - 2**-8
    optimizer = Optimizer(weight, betas=BETAS, weight_decay=0.0)
    seen: list[float] = []
    for _ in range(400):
        weight["one"].grad = torch.ones(1, dtype=torch.bfloat16)
        optimizer.step(1e-5)  # Adam moves by 1e-5 each time
        seen.append(float(weight["one"].detach()))
    assert seen[100] == 1.0
    assert seen[-1] == 1 - 2**-8
    master = join(weight["one"].detach(), optimizer.tensors()["residual.one"])
    assert float(master) == pytest.approx(1 - 400e-5, abs=1e-5)


def test_the_norm_is_that_of_the_scaled_gradient_before_it_is_cut() -> None:
    named = {"both": nn.Parameter(torch.zeros(2))}
    optimizer = Optimizer(named, betas=BETAS, weight_decay=0.0)
    named["both"].grad = torch.tensor([3.0, 4.0])
    assert optimizer.clip(1.0, scale=0.5) == pytest.approx(2.5)
    assert named["both"].grad.tolist() == pytest.approx([0.6, 0.8], rel=1e-5)
    assert optimizer.clip(10.0) == pytest.approx(1.0, rel=1e-5)
    assert named["both"].grad.tolist() == pytest.approx([0.6, 0.8], rel=1e-5)


def test_forgotten_gradients_move_nothing() -> None:
    named = parameters()
    optimizer = Optimizer(named, betas=BETAS, weight_decay=0.0)
    set_gradients(named, seed=0)
    optimizer.zero_grad()
    before = values(named)
    optimizer.step(0.1)
    assert all(torch.equal(before[name], parameter) for name, parameter in named.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_by_name_continues_bit_for_bit(dtype: torch.dtype) -> None:
    first = parameters(dtype)
    optimizer = Optimizer(first, betas=BETAS, weight_decay=0.1)
    for seed in range(3):
        set_gradients(first, seed=seed, size=1e-3)
        optimizer.step(1e-4)
    kept = {name: tensor.clone() for name, tensor in optimizer.tensors().items()}
    second = {name: nn.Parameter(tensor) for name, tensor in values(first).items()}
    continued = Optimizer(second, betas=BETAS, weight_decay=0.1)
    continued.load_tensors(kept)
    for seed in range(3, 6):
        for named, each in ((first, optimizer), (second, continued)):
            set_gradients(named, seed=seed, size=1e-3)
            each.step(1e-4)
    for name, tensor in optimizer.tensors().items():
        assert torch.equal(tensor, continued.tensors()[name]), name
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_state_from_before_the_first_step_makes_it_the_first_again() -> None:
    named = parameters()
    optimizer = Optimizer(named, betas=BETAS, weight_decay=0.0)
    fresh, start = optimizer.tensors(), values(named)
    assert fresh == {}
    ends: list[dict[str, Tensor]] = []
    for _ in range(2):
        with torch.no_grad():
            for name, parameter in named.items():
                parameter.copy_(start[name])
        optimizer.load_tensors(fresh)
        set_gradients(named, seed=1)
        optimizer.step(0.01)
        ends.append(values(named))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in named)
