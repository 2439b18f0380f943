"""AdamW that keeps a single-precision weight in as little memory as you ask for, and its state as named tensors.

It steps weight by weight, in pieces, and never copies gradients. The recipe's `train.masters`, `moments` and `offload`
say how the state is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from turnwise.learn.adam import Piece, Step, read_master, read_moment, take_step, write_master
from turnwise.learn.encodings import BLOCK, encode_signed, encode_square, random_key, split
from turnwise.learn.offload import pinned, step_offloaded
from turnwise.policy.sharding import is_sharded, local, rows_of
from turnwise.ranks import ALONE, Ranks

Masters = Literal["fp32", "residual", "stochastic"]
Moments = Literal["fp32", "bf16", "int8"]
Offload = Literal["none", "cpu"]
PIECE = 2**24
"""Numbers that are stepped at once where that takes extra memory: on the CPU, and with offloaded state."""
_MOMENTS = ("exp_avg", "exp_avg_sq")
_KINDS = ("master", "residual", *_MOMENTS, *(f"{moment}_scale" for moment in _MOMENTS))
_EPS = 1e-6
_BUCKET = 2**24
"""Numbers that ranks sum at once: few sums, and little memory besides the gradients."""


class Optimizer:
    """AdamW over named parameters.

    Steps of 1e-6 would be rounded away in half-precision weights, so these have a `master` in single precision; or a
    `residual`, the 16 bits that they lack, which is as exact in half the memory; or are rounded by chance.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        betas: tuple[float, float],
        weight_decay: float,
        masters: Masters = "residual",
        moments: Moments = "fp32",
        offload: Offload = "none",
        seed: int = 0,
    ) -> None:
        self.parameters = dict(parameters)
        self._parts = {name: _part_of(parameter) for name, parameter in self.parameters.items()}
        """What this rank steps: its part of each weight, in the same memory."""
        self._betas, self._weight_decay, self._seed = betas, weight_decay, seed
        self._masters, self._moments, self._offload = masters, moments, offload
        self._counts: dict[str, int] = {}
        """Steps of each weight that has had a gradient."""
        self._kept: dict[str, dict[str, Tensor]] = {}
        for name, parameter in self._parts.items():
            parameter.data = parameter.data.contiguous()
            self._kept[name] = self._new_master(parameter)

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for parameter in (*self.parameters.values(), *self._parts.values()):
            parameter.grad = None

    def sum_gradients(self, ranks: Ranks) -> None:
        """Sum the gradients of all ranks, each computed from that rank's tokens."""
        if ranks.size == 1:
            return
        whole = [each for each in self.parameters.values() if not is_sharded(each)]
        for name, parameter in self.parameters.items():
            if is_sharded(parameter):  # the backward pass has summed it
                self._parts[name].grad = None if parameter.grad is None else local(parameter.grad)
        for bucket in _buckets(whole):
            mine = [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]
            total = ranks.reduce(torch.cat([gradient.flatten().float() for gradient in mine]))
            for parameter, part in zip(bucket, total.split([each.numel() for each in bucket]), strict=True):
                parameter.grad = part.view_as(parameter).to(parameter.dtype)

    @torch.no_grad()
    def clip(self, limit: float, *, scale: float = 1.0, ranks: Ranks = ALONE) -> float:
        """Scale the gradient, clip its norm to the limit, and return the norm between the two."""
        gradients = {name: part.grad for name, part in self._parts.items() if part.grad is not None}
        if not gradients:
            return 0.0
        for gradient in gradients.values() if scale != 1.0 else ():
            gradient.mul_(scale)
        # In single precision: a norm in bf16 has two digits.
        norms = {name: torch.linalg.vector_norm(each, dtype=torch.float32) for name, each in gradients.items()}
        total = self.norm_over(ranks, norms)
        factor = (limit / (total + _EPS)).clamp(max=1.0)
        if float(factor) != 1.0:  # also if it is NaN
            for gradient in gradients.values():
                gradient.mul_(factor)
        return float(total)

    def norm_over(self, ranks: Ranks, norms: Mapping[str, Tensor]) -> Tensor:
        """The norm of everything; what is not sharded is the same on all ranks and counts once."""
        if not any(is_sharded(parameter) for parameter in self.parameters.values()):
            return torch.linalg.vector_norm(torch.stack([*norms.values()]))
        mine = [norm for name, norm in norms.items() if is_sharded(self.parameters[name]) or ranks.rank == 0]
        return ranks.reduce(torch.stack(mine).double().square().sum()[None]).sqrt()[0].float()

    def step(self, learning_rate: float) -> None:
        """Update the weights."""
        moved = {name: each for name, each in self._parts.items() if each.grad is not None}
        for name, parameter in moved.items():
            if name not in self._counts:
                self._kept[name] |= self._new_moments(parameter)
            self._counts[name] = self._counts.get(name, 0) + 1
        work = (
            (piece, step)
            for name in moved
            for step in [self._numbers(name, learning_rate)]
            for piece in self._pieces(name)
        )
        if self._is_offloaded(*moved.values()):
            step_offloaded(work, _stepper("cuda"))
            return
        for piece, step in work:
            _stepper(piece.weight.device.type)(piece, step)

    def wide_weights(self) -> Iterator[tuple[str, Tensor]]:
        """This rank's part of each weight in single precision: where it is kept so, that tensor itself."""
        return ((name, read_master(part.detach(), self._wide_state(name))) for name, part in self._parts.items())

    @torch.no_grad()
    def rewrite(self, change: Callable[[str, Tensor], Tensor]) -> None:
        """Replace this rank's part of each weight by what `change(name, part)` makes of it in single precision."""
        for name, wide in self.wide_weights():
            state, weight = self._wide_state(name), self._parts[name].detach().view(-1)
            key = random_key(self._seed, self._counts.get(name, 0), name, "rewritten")
            flat = {kind: tensor.view(-1) for kind, tensor in state.items()}
            before = _numbers_before(self.parameters[name])
            write_master(weight, flat, change(name, wide).contiguous().view(-1), start=before, key=key)
            for kind, tensor in state.items():  # it may be in the host's memory
                self._kept[name][kind].copy_(tensor)

    def _wide_state(self, name: str) -> dict[str, Tensor]:
        """What a weight lacks to be in single precision, on the weight's device."""
        self._wait_for_copies()
        kept, device = self._kept[name], self._parts[name].device
        return {kind: kept[kind].to(device) for kind in ("master", "residual") if kind in kept}

    def _wait_for_copies(self) -> None:
        if self._is_offloaded(*self.parameters.values()):
            torch.cuda.synchronize()  # copies to the host may be under way

    def tensors(self) -> dict[str, Tensor]:
        """The state by name, for a checkpoint: `exp_avg.NAME`, `residual.NAME` and so on."""
        self._wait_for_copies()
        named = {f"{kind}.{name}": tensor for name, kept in self._kept.items() for kind, tensor in kept.items()}
        return named | {f"step.{name}": torch.tensor(float(count)) for name, count in self._counts.items()}

    @torch.no_grad()
    def load_tensors(self, kept: Mapping[str, Tensor]) -> None:
        """Restore from `tensors()`, also of an optimiser that keeps its state in another way."""
        self._counts = {name: int(kept[f"step.{name}"]) for name in self.parameters if f"step.{name}" in kept}
        for name, parameter in self._parts.items():
            mine = self._new_master(parameter)
            if name in self._counts:
                mine |= self._new_moments(parameter)
            theirs = {kind: kept[f"{kind}.{name}"].to(parameter.device) for kind in _KINDS if f"{kind}.{name}" in kept}
            _load_master(parameter, theirs, mine)
            for moment in mine.keys() & {*_MOMENTS}:
                _load_moment(moment, theirs, mine)
            self._kept[name] = mine

    def forget(self) -> None:
        """Begin again without moments; what weights lack to be in single precision stays."""
        self._counts.clear()
        for kept in self._kept.values():
            for kind in kept.keys() - {"master", "residual"}:
                del kept[kind]

    # What is kept for a weight.

    def _new_master(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        if parameter.dtype == torch.float32:
            return {}
        if parameter.dtype == torch.bfloat16 and self._masters == "residual":
            return {"residual": self._new(parameter, torch.int16)}
        if parameter.dtype == torch.bfloat16 and self._masters == "stochastic":
            return {}
        return {"master": self._new(parameter, torch.float32).copy_(parameter.detach())}

    def _new_moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        if self._moments != "int8":
            dtype = torch.float32 if self._moments == "fp32" else torch.bfloat16
            return {moment: self._new(parameter, dtype) for moment in _MOMENTS}
        scales = torch.Size([-(-parameter.numel() // BLOCK)])
        return {
            "exp_avg": self._new(parameter, torch.int8),
            "exp_avg_sq": self._new(parameter, torch.uint8),
            **{f"{moment}_scale": self._new(parameter, torch.float32, scales) for moment in _MOMENTS},
        }

    def _new(self, parameter: nn.Parameter, dtype: torch.dtype, shape: torch.Size | None = None) -> Tensor:
        shape = parameter.shape if shape is None else shape
        if self._is_offloaded(parameter):
            return pinned(shape, dtype)
        return torch.zeros(shape, dtype=dtype, device=parameter.device)

    def _is_offloaded(self, *parameters: nn.Parameter) -> bool:
        """Whether their state is in the host's memory; weights on the CPU have it there anyway."""
        return self._offload == "cpu" and any(parameter.is_cuda for parameter in parameters)

    # Steps.

    def _numbers(self, name: str, rate: float) -> Step:
        count = self._counts[name]
        key = random_key(self._seed, count, name)
        return Step(rate=rate, betas=self._betas, weight_decay=self._weight_decay, count=count, key=key)

    def _pieces(self, name: str) -> Iterator[Piece]:
        parameter = self._parts[name]
        assert parameter.grad is not None
        before = _numbers_before(self.parameters[name])
        weight, gradient = parameter.detach().view(-1), parameter.grad.detach().reshape(-1)
        kept = {kind: tensor.view(-1) for kind, tensor in self._kept[name].items()}
        whole = parameter.is_cuda and self._offload == "none"  # the kernel takes no extra memory
        size = max(weight.numel(), 1) if whole else PIECE
        for start in range(0, weight.numel(), size):
            part, blocks = slice(start, start + size), slice(start // BLOCK, -(-(start + size) // BLOCK))
            mine = {kind: tensor[blocks if kind.endswith("scale") else part] for kind, tensor in kept.items()}
            yield Piece(weight=weight[part], gradient=gradient[part], kept=mine, start=before + start)


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Neighbouring parameters with about `_BUCKET` numbers together."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        bucket.append(parameter)
        if sum(each.numel() for each in bucket) >= _BUCKET:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


def _part_of(parameter: nn.Parameter) -> nn.Parameter:
    """This rank's part of a parameter, in the same memory; the parameter itself where it is not sharded."""
    return nn.Parameter(local(parameter.detach())) if is_sharded(parameter) else parameter


def _numbers_before(parameter: nn.Parameter) -> int:
    """How many numbers of the whole weight come before this rank's part."""
    return (rows_of(parameter).start or 0) * (parameter.numel() // max(len(parameter), 1)) if parameter.ndim else 0


def _stepper(device: str) -> Callable[[Piece, Step], None]:
    if device != "cuda":
        return take_step
    from turnwise.learn import adam_kernels  # Triton is only installed with CUDA

    return adam_kernels.take_step


# State from a checkpoint. What was kept in another way goes through single precision, to the nearest.


def _load_master(parameter: nn.Parameter, theirs: Mapping[str, Tensor], mine: Mapping[str, Tensor]) -> None:
    if "master" in mine:
        mine["master"].copy_(read_master(parameter.detach(), theirs))
    elif "residual" in mine and "residual" in theirs:
        mine["residual"].copy_(theirs["residual"])
    elif "residual" in mine:
        half, residual = split(read_master(parameter.detach(), theirs).contiguous())
        parameter.copy_(half)  # it may have been rounded in another way
        mine["residual"].copy_(residual)


def _load_moment(moment: str, theirs: Mapping[str, Tensor], mine: Mapping[str, Tensor]) -> None:
    scale = f"{moment}_scale"
    if mine[moment].dtype == theirs[moment].dtype:
        for kind in mine.keys() & {moment, scale}:
            mine[kind].copy_(theirs[kind])
        return
    wide = read_moment({kind: theirs[kind].view(-1) for kind in theirs.keys() & {moment, scale}}, moment)
    if scale in mine:
        encode = encode_signed if mine[moment].dtype == torch.int8 else encode_square
        wide, scale_B = encode(wide, torch.full_like(wide, 2**15))
        mine[scale].copy_(scale_B)
    mine[moment].view(-1).copy_(wide)
