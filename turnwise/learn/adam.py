"""One AdamW step on a flat piece of a weight, in plain torch: the reference for the CUDA kernel, and the CPU's way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.learn.encodings import (
    decode_signed,
    decode_square,
    encode_signed,
    encode_square,
    join,
    random_bits,
    random_key,
    round_by_chance,
    split,
)

EPS = 1e-8
_LOW_16 = 0xFFFF


@dataclass(frozen=True, kw_only=True)
class Step:
    """The numbers of one step, the same for every piece of a weight."""

    rate: float
    betas: tuple[float, float]
    weight_decay: float
    count: int
    """Which step of this weight it is, from 1."""
    key: int
    """For rounding moments by chance."""

    @property
    def weight_key(self) -> int:
        """For rounding the weight by chance."""
        return random_key(self.key, "weight")

    @property
    def decay(self) -> float:
        """Factor on the weight."""
        return 1 - self.rate * self.weight_decay

    @property
    def size(self) -> float:
        """The learning rate, corrected for the first moment's start at zero."""
        return self.rate / (1 - self.betas[0] ** self.count)

    @property
    def root_correction(self) -> float:
        """Of the second moment's root."""
        return (1 - self.betas[1] ** self.count) ** 0.5


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A flat part of a weight with its gradient, and what the optimiser keeps for it.

    `kept` has `exp_avg` and `exp_avg_sq` in float32, bf16 or 8 bits (then with `exp_avg_scale`, `exp_avg_sq_scale`),
    and for a bf16 weight `master` (float32) or `residual` (int16); without either the weight is rounded by chance.
    """

    weight: Tensor
    gradient: Tensor
    kept: Mapping[str, Tensor]
    start: int = 0
    """Where it starts in the weight."""


@torch.no_grad()
def take_step(piece: Piece, step: Step) -> None:
    """Update the piece in place."""
    kept, (beta1, beta2) = piece.kept, step.betas
    master, gradient = read_master(piece.weight, kept), piece.gradient.float()
    first, second = read_moment(kept, "exp_avg"), read_moment(kept, "exp_avg_sq")
    # These operations in this order give the bits of torch.optim.AdamW.
    if step.weight_decay != 0:
        master.mul_(step.decay)
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    root = (second.sqrt() / step.root_correction).add_(EPS)
    master.addcdiv_(first, root, value=-step.size)
    if kept["exp_avg"].dtype != torch.float32:
        random = random_bits(step.key, piece.start, first)
        _write_moment(kept, "exp_avg", first, random & _LOW_16)
        _write_moment(kept, "exp_avg_sq", second, random >> 16)
    write_master(piece.weight, kept, master, start=piece.start, key=step.weight_key)


def read_master(weight: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
    """The weight in single precision: where it is kept so, that tensor itself."""
    if weight.dtype == torch.float32:
        return weight
    if "master" in kept:
        return kept["master"]
    return join(weight, kept["residual"]) if "residual" in kept else weight.float()


def read_moment(kept: Mapping[str, Tensor], name: str) -> Tensor:
    """A moment in single precision: where it is kept so, that tensor itself."""
    if kept[name].dtype == torch.int8:
        return decode_signed(kept[name], kept[f"{name}_scale"])
    if kept[name].dtype == torch.uint8:
        return decode_square(kept[name], kept[f"{name}_scale"])
    return kept[name].float()


def write_master(weight: Tensor, kept: Mapping[str, Tensor], wide: Tensor, *, start: int, key: int) -> None:
    """Keep a flat piece of a weight that is given in single precision; `key` is for rounding by chance."""
    if weight.dtype == torch.float32:
        weight.copy_(wide)
    elif "residual" in kept:
        half, residual = split(wide)
        weight.copy_(half)
        kept["residual"].copy_(residual)
    elif "master" in kept:
        kept["master"].copy_(wide)
        weight.copy_(wide)
    else:
        random = random_bits(key, start, wide)
        weight.copy_(round_by_chance(wide, random & _LOW_16))


def _write_moment(kept: Mapping[str, Tensor], name: str, wide: Tensor, random_16: Tensor) -> None:
    if kept[name].dtype == torch.bfloat16:
        kept[name].copy_(round_by_chance(wide, random_16))
        return
    encode = encode_signed if kept[name].dtype == torch.int8 else encode_square
    level, scale_B = encode(wide, random_16)
    kept[name].copy_(level)
    kept[f"{name}_scale"].copy_(scale_B)
