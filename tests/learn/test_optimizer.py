"""AdamW with named state: what torch does, tiny steps on half-precision weights, and an exact continuation."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from turnwise.learn.adam import read_moment
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


MODES = [
    {"masters": masters, "moments": moments}
    for masters in ("fp32", "residual", "stochastic")
    for moments in ("fp32", "bf16", "int8")
]


def half(size: int = 700) -> dict[str, nn.Parameter]:
    noise = torch.Generator().manual_seed(0)
    return {"half": nn.Parameter(torch.randn(size, generator=noise).bfloat16())}


def run(named: dict[str, nn.Parameter], optimizer: Optimizer, seeds: range, rate: float = 1e-3) -> None:
    for seed in seeds:
        set_gradients(named, seed=seed, size=1e-3)
        optimizer.step(rate)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_every_way_to_keep_the_state_continues_bit_for_bit(mode: dict[str, Any]) -> None:
    first = half()
    optimizer = Optimizer(first, betas=BETAS, weight_decay=0.1, seed=7, **mode)
    run(first, optimizer, range(3))
    second = {name: nn.Parameter(tensor) for name, tensor in values(first).items()}
    continued = Optimizer(second, betas=BETAS, weight_decay=0.1, seed=7, **mode)
    continued.load_tensors({name: tensor.clone() for name, tensor in optimizer.tensors().items()})
    run(first, optimizer, range(3, 6))
    run(second, continued, range(3, 6))
    assert torch.equal(first["half"], second["half"])
    for name, tensor in optimizer.tensors().items():
        assert torch.equal(tensor, continued.tensors()[name]), name


def test_a_residual_is_as_exact_as_a_copy_in_single_precision() -> None:
    copied, split_up = half(), half()
    copy = Optimizer(copied, betas=BETAS, weight_decay=0.1, masters="fp32")
    residual = Optimizer(split_up, betas=BETAS, weight_decay=0.1, masters="residual")
    run(copied, copy, range(20), rate=1e-5)
    run(split_up, residual, range(20), rate=1e-5)
    joined = join(split_up["half"].detach(), residual.tensors()["residual.half"])
    assert torch.equal(joined, copy.tensors()["master.half"])
    assert not torch.equal(joined.bfloat16().float(), joined)


def test_a_residual_takes_two_bytes_and_small_moments_one_each() -> None:
    named = half(2560)
    optimizer = Optimizer(named, betas=BETAS, weight_decay=0.0, moments="int8")
    run(named, optimizer, range(1))
    sizes = {name.split(".")[0]: tensor.nbytes for name, tensor in optimizer.tensors().items()}
    assert sizes["residual"] == 2 * 2560
    assert sizes["exp_avg"] == sizes["exp_avg_sq"] == 2560
    assert sizes["exp_avg_scale"] == sizes["exp_avg_sq_scale"] == 4 * 10


@pytest.mark.parametrize("moments", ["bf16", "int8"])
def test_a_second_moment_in_few_bits_still_forgets(moments: Any) -> None:
    # Rounded to the nearest, a loss of 0.1% a step would never happen.
    named = {"flat": nn.Parameter(torch.zeros(2048))}
    optimizer = Optimizer(named, betas=(0.9, 0.999), weight_decay=0.0, moments=moments)
    named["flat"].grad = torch.ones(2048)
    optimizer.step(0.0)
    start = _second(optimizer)
    named["flat"].grad = torch.zeros(2048)
    for _ in range(300):
        optimizer.step(0.0)
    assert _second(optimizer) / start == pytest.approx(0.999**300, rel=0.03)


def _second(optimizer: Optimizer) -> float:
    kept = {name.removesuffix(".flat"): tensor for name, tensor in optimizer.tensors().items()}
    return float(read_moment(kept, "exp_avg_sq").mean())


def test_rounding_by_chance_moves_weights_on_average_by_steps_that_they_cannot_hold() -> None:
    named = {"ones": nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))}
    optimizer = Optimizer(named, betas=BETAS, weight_decay=0.0, masters="stochastic")
    for _ in range(100):
        named["ones"].grad = torch.ones(4096, dtype=torch.bfloat16)
        optimizer.step(1e-5)
    assert float(named["ones"].detach().float().mean()) == pytest.approx(1 - 100e-5, abs=2e-4)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_state_kept_in_one_way_is_read_in_another(mode: dict[str, Any]) -> None:
    named = half()
    optimizer = Optimizer(named, betas=BETAS, weight_decay=0.0, masters="fp32")
    run(named, optimizer, range(3))
    other = {name: nn.Parameter(tensor) for name, tensor in values(named).items()}
    continued = Optimizer(other, betas=BETAS, weight_decay=0.0, **mode)
    continued.load_tensors(optimizer.tensors())
    run(named, optimizer, range(3, 6))
    run(other, continued, range(3, 6))
    difference = (named["half"] - other["half"]).detach().float().abs()
    assert float(difference.max()) <= 2**-6 if mode["masters"] == "stochastic" else float(difference.mean()) < 1e-3


def test_weights_larger_than_a_piece_move_as_torch_moves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.learn.optimizer.PIECE", 512)
    for moments in ("fp32", "int8"):
        whole, pieces = ({"big": nn.Parameter(torch.linspace(-1, 1, 1300))} for _ in range(2))
        monkeypatch.setattr("turnwise.learn.optimizer.PIECE", 2**24)
        run(whole, Optimizer(whole, betas=BETAS, weight_decay=0.1, moments=moments), range(3))
        monkeypatch.setattr("turnwise.learn.optimizer.PIECE", 512)
        run(pieces, Optimizer(pieces, betas=BETAS, weight_decay=0.1, moments=moments), range(3))
        torch.testing.assert_close(whole["big"], pieces["big"], rtol=0, atol=1e-7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("offload", ["none", "cpu"])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_the_kernel_steps_as_plain_torch_does(
    mode: dict[str, Any], offload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnwise.learn.optimizer.PIECE", 512)
    here, there = half(1300), {name: nn.Parameter(each.detach().cuda()) for name, each in half(1300).items()}
    optimizers = [
        Optimizer(here, betas=BETAS, weight_decay=0.1, **mode),
        Optimizer(there, betas=BETAS, weight_decay=0.1, offload=offload, **mode),
    ]
    for seed in range(5):
        set_gradients(here, seed=seed, size=1e-3)
        assert here["half"].grad is not None
        there["half"].grad = here["half"].grad.cuda()
        for optimizer in optimizers:
            optimizer.step(1e-3)
    # A last bit that differs may tip a number to its other neighbour.
    far = (here["half"].float() - there["half"].cpu().float()).detach().abs() > 2**-7 * here["half"].detach().abs()
    assert int(far.sum()) == 0
    differing = (here["half"] != there["half"].cpu()).float().mean()
    assert float(differing) < 0.02
