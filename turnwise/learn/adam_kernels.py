"""The AdamW step of `adam.py` as one CUDA kernel, in Triton: everything is read and written once."""

# Triton is only installed with CUDA, and pyright cannot type its launch syntax.
# pyright: reportMissingImports=false, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

from turnwise.learn.adam import EPS, Piece, Step
from turnwise.learn.encodings import BLOCK

_ROWS = 4
"""Blocks of 256 numbers for each program."""
_WIDE, _MASTER, _RESIDUAL, _CHANCE = range(4)
"""How a weight is kept: float32; bf16 with a float32 master, with a 16-bit residual, or rounded by chance."""


@triton.jit
def _random(key, place):
    """The 32 bits of `encodings.random_bits`."""
    x = place.to(tl.uint32) ^ key.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _by_chance(x, random_16):
    """To bf16, as `encodings.round_by_chance`."""
    bits = (x.to(tl.uint32, bitcast=True) + random_16) & 0xFFFF0000
    finite = tl.abs(x) < float("inf")
    return tl.where(finite, bits.to(tl.float32, bitcast=True), x).to(tl.bfloat16)


@triton.jit
def _pick(share, low, below, above, random_16):
    return low + (random_16.to(tl.float32) < (share - below) / (above - below) * 65536.0).to(tl.float32)


@triton.jit
def _fourth(x):
    return (x * x) * (x * x)


@triton.jit
def _store_signed(x, level_ptr, scale_ptr, place, block, inside, random_16):
    """As `encodings.encode_signed`."""
    scale = tl.max(tl.abs(x), axis=1)
    share = x / tl.where(scale > 0, scale, 1.0)[:, None]
    magnitude = tl.abs(share)
    low = tl.minimum(tl.floor(tl.sqrt(magnitude) * 127.0), 126.0)
    below, above = low / 127.0, (low + 1.0) / 127.0
    level = _pick(magnitude, low, below * below, above * above, random_16)
    tl.store(level_ptr + place, tl.where(share < 0, -level, level).to(tl.int8), mask=inside)
    tl.store(scale_ptr + block, scale, mask=tl.max(inside.to(tl.int32), axis=1) > 0)


@triton.jit
def _store_square(x, level_ptr, scale_ptr, place, block, inside, random_16):
    """As `encodings.encode_square`."""
    scale = tl.max(x, axis=1)
    share = x / tl.where(scale > 0, scale, 1.0)[:, None]
    low = tl.minimum(tl.floor(tl.sqrt(tl.sqrt(share)) * 255.0), 254.0)
    level = _pick(share, low, _fourth(low / 255.0), _fourth((low + 1.0) / 255.0), random_16)
    level = tl.where(share > 0, tl.maximum(level, 1.0), 0.0)
    tl.store(level_ptr + place, level.to(tl.uint8), mask=inside)
    tl.store(scale_ptr + block, scale, mask=tl.max(inside.to(tl.int32), axis=1) > 0)


@triton.jit
def _load_scale(scale_ptr, block, inside):
    return tl.load(scale_ptr + block, mask=tl.max(inside.to(tl.int32), axis=1) > 0, other=0.0)[:, None]


@triton.jit(do_not_specialize=["start", "key", "weight_key"])
def _step_kernel(
    weight_ptr, gradient_ptr, master_ptr, first_ptr, second_ptr, first_scale_ptr, second_scale_ptr, count, start,
    key, weight_key, decay, new1, beta2, new2, size, root_correction, eps,
    KEPT: tl.constexpr, BITS: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    place = block[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    inside = place < count
    gradient = tl.load(gradient_ptr + place, mask=inside, other=0.0).to(tl.float32)
    first = tl.load(first_ptr + place, mask=inside, other=0).to(tl.float32)
    second = tl.load(second_ptr + place, mask=inside, other=0).to(tl.float32)
    if BITS == 8:
        first = first / 127.0
        first = first * tl.abs(first) * _load_scale(first_scale_ptr, block, inside)
        second = _fourth(second / 255.0) * _load_scale(second_scale_ptr, block, inside)
    if KEPT == 2:  # bf16 bits and what they lack
        high = tl.load(weight_ptr + place, mask=inside, other=0).to(tl.int32)
        low = tl.load(master_ptr + place, mask=inside, other=0).to(tl.int32)
        weight = ((high << 16) + low).to(tl.float32, bitcast=True)
    elif KEPT == 1:
        weight = tl.load(master_ptr + place, mask=inside, other=0.0)
    else:
        weight = tl.load(weight_ptr + place, mask=inside, other=0.0).to(tl.float32)
    first = first + (gradient - first) * new1
    second = second * beta2 + gradient * gradient * new2
    weight = weight * decay - size * (first / (tl.sqrt(second) / root_correction + eps))
    if BITS == 32:
        tl.store(first_ptr + place, first, mask=inside)
        tl.store(second_ptr + place, second, mask=inside)
    else:
        random = _random(key, place + start)
        if BITS == 16:
            tl.store(first_ptr + place, _by_chance(first, random & 0xFFFF), mask=inside)
            tl.store(second_ptr + place, _by_chance(second, random >> 16), mask=inside)
        else:
            _store_signed(first, first_ptr, first_scale_ptr, place, block, inside, random & 0xFFFF)
            _store_square(second, second_ptr, second_scale_ptr, place, block, inside, random >> 16)
    if KEPT == 2:
        bits = weight.to(tl.int32, bitcast=True)
        high = tl.where(weight != weight, 0x7FC0, (bits + 0x8000) >> 16)
        tl.store(weight_ptr + place, high.to(tl.int16), mask=inside)
        tl.store(master_ptr + place, (bits - (high << 16)).to(tl.int16), mask=inside)
    elif KEPT == 1:
        tl.store(master_ptr + place, weight, mask=inside)
        tl.store(weight_ptr + place, weight.to(weight_ptr.dtype.element_ty), mask=inside)
    elif KEPT == 3:
        random = _random(weight_key, place + start)
        tl.store(weight_ptr + place, _by_chance(weight, random & 0xFFFF), mask=inside)
    else:
        tl.store(weight_ptr + place, weight, mask=inside)


def take_step(piece: Piece, step: Step) -> None:
    """`adam.take_step` on a CUDA device."""
    kept, weight = piece.kept, piece.weight
    master = kept.get("master", kept.get("residual", weight))
    way = _WIDE if weight.dtype == torch.float32 else _CHANCE
    if "master" in kept or "residual" in kept:
        way = _MASTER if "master" in kept else _RESIDUAL
    _step_kernel[(triton.cdiv(weight.numel(), _ROWS * BLOCK),)](
        weight.view(torch.int16) if way == _RESIDUAL else weight, piece.gradient, master, kept["exp_avg"],
        kept["exp_avg_sq"], kept.get("exp_avg_scale", weight), kept.get("exp_avg_sq_scale", weight), weight.numel(),
        piece.start, step.key, step.weight_key, step.decay, 1 - step.betas[0], step.betas[1], 1 - step.betas[1],
        step.size, step.root_correction, EPS,
        KEPT=way, BITS=8 * kept["exp_avg"].element_size(), ROWS=_ROWS, BLOCK_N=BLOCK, num_warps=4,
    )  # fmt: skip
