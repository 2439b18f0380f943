"""Sampling on CUDA, in Triton: from logits to the next input without a host round trip."""

# Triton is only installed with CUDA, and pyright cannot type its launch syntax.
# pyright: reportMissingImports=false, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SAMPLE_CHUNK = 2048


@triton.jit
def _chunk_kernel(
    logit_ptr, temperature_ptr, slot_ptr, best_ptr, where_ptr, mass_ptr, width, chunks, CHUNK: tl.constexpr
):
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slot_ptr + row)
    temperature = tl.load(temperature_ptr + slot)
    temperature = tl.where(temperature == 0, 1.0, temperature)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    logit = tl.load(logit_ptr + row * width + column, mask=column < width, other=float("-inf")).to(tl.float32)
    logit = logit / temperature
    best = tl.max(logit, axis=0)
    tl.store(best_ptr + row * chunks + chunk, best)
    tl.store(where_ptr + row * chunks + chunk, chunk * CHUNK + tl.argmax(logit, axis=0))
    tl.store(mass_ptr + row * chunks + chunk, tl.sum(tl.exp(logit - best), axis=0))


@triton.jit
def _uniform(seed, position):
    """The counter generator of `sampling.counter_uniform`."""
    x = seed + position * -7046029254386353131
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    x = x ^ ((x >> 31) & 0x1FFFFFFFF)
    return ((x >> 40) & 0xFFFFFF).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def _pick_kernel(
    logit_ptr, temperature_ptr, seed_ptr, slot_ptr, position_ptr, best_ptr, where_ptr, mass_ptr, token_ptr, length_ptr,
    id_ptr, logprob_ptr, width, chunks, scratch, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot, position = tl.load(slot_ptr + row), tl.load(position_ptr + row)
    temperature = tl.load(temperature_ptr + slot)
    greedy = temperature == 0
    temperature = tl.where(greedy, 1.0, temperature)
    place = tl.arange(0, CHUNKS)
    inside = place < chunks
    best = tl.load(best_ptr + row * chunks + place, mask=inside, other=float("-inf"))
    top = tl.max(best, axis=0)
    mass = tl.load(mass_ptr + row * chunks + place, mask=inside, other=0.0) * tl.exp(best - top)
    reached = tl.cumsum(mass, axis=0)
    total = tl.sum(mass, axis=0)
    target = _uniform(tl.load(seed_ptr + slot), (position + 1).to(tl.int64)) * total
    chunk = tl.minimum(tl.sum((reached <= target).to(tl.int32), axis=0), chunks - 1)
    before = tl.sum(tl.where(place < chunk, mass, 0.0), axis=0)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    logit = tl.load(logit_ptr + row * width + column, mask=column < width, other=float("-inf")).to(tl.float32)
    within = before + tl.cumsum(tl.exp(logit / temperature - top), axis=0)
    size = tl.minimum(width - chunk * CHUNK, CHUNK)
    drawn = chunk * CHUNK + tl.minimum(tl.sum((within <= target).to(tl.int32), axis=0), size - 1)
    greedy_id = tl.load(where_ptr + row * chunks + tl.argmax(best, axis=0))
    token = tl.where(greedy, greedy_id, drawn)
    chosen = tl.load(logit_ptr + row * width + token).to(tl.float32) / temperature
    tl.store(logprob_ptr + row, chosen - top - tl.log(total))
    tl.store(id_ptr + row, token.to(tl.int64))
    # Padding rows share the scratch slot, which must not grow.
    tl.store(token_ptr + slot, token.to(tl.int64), mask=slot != scratch)
    tl.store(length_ptr + slot, (position + 1).to(tl.int64), mask=slot != scratch)


def sample(
    logits_BV: Tensor, slot_B: Tensor, position_B: Tensor, temperature_S: Tensor, seed_S: Tensor, token_S: Tensor,
    length_S: Tensor, id_B: Tensor, logprob_B: Tensor,
) -> None:  # fmt: skip
    """Draw one token per row by inverting its distribution and leave it ready to be fed back; the last slot is scratch.

    One pass over the logits for the mass of each chunk, then one chunk per row: nothing of the size of the vocabulary
    is written.
    """
    rows, width = logits_BV.shape
    chunks = triton.cdiv(width, SAMPLE_CHUNK)
    best = torch.empty((rows, chunks), dtype=torch.float32, device=logits_BV.device)
    where, mass = torch.empty_like(best, dtype=torch.int32), torch.empty_like(best)
    _chunk_kernel[(rows, chunks)](
        logits_BV, temperature_S, slot_B, best, where, mass, width, chunks, CHUNK=SAMPLE_CHUNK, num_warps=4
    )
    _pick_kernel[(rows,)](
        logits_BV, temperature_S, seed_S, slot_B, position_B, best, where, mass, token_S, length_S, id_B, logprob_B,
        width, chunks, token_S.numel() - 1, CHUNK=SAMPLE_CHUNK, CHUNKS=triton.next_power_of_2(chunks), num_warps=4,
    )  # fmt: skip
