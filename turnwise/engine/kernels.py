"""CUDA kernels of the decode path, in Triton. They round where transformers rounds, so that log-probs agree."""

# Triton is there where CUDA is, and its launch syntax is its own.
# pyright: reportMissingImports=false, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SAMPLE_CHUNK = 2048


@triton.jit
def _norm(x, weight, width, eps, dtype: tl.constexpr):
    """RMS norm of a row in float32, rounded before the weight is applied."""
    scaled = x * tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    return (scaled.to(dtype).to(tl.float32) * weight).to(dtype)


@triton.jit
def _add_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, sum_ptr, width, eps, ADD: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    x = tl.load(x_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32)
        x = x.to(dtype).to(tl.float32)
        tl.store(sum_ptr + row * width + column, x.to(dtype), mask=inside)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + column, _norm(x, weight, width, eps, dtype), mask=inside)


def add_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(norm(x + residual), x + residual) in one pass over the rows."""
    out = torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    width = x.shape[-1]
    _add_norm_kernel[(x.shape[0],)](
        x, x if residual is None else residual, weight, out, total, width, eps,
        ADD=residual is not None, BLOCK=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return out, total


@triton.jit
def _silu_mul_kernel(gate_ptr, up_ptr, out_ptr, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    gate = tl.load(gate_ptr + place, mask=inside, other=0.0).to(tl.float32)
    dtype: tl.constexpr = gate_ptr.dtype.element_ty
    activated = (gate * tl.sigmoid(gate)).to(dtype).to(tl.float32)
    up = tl.load(up_ptr + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + place, (activated * up).to(dtype), mask=inside)


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up."""
    out = torch.empty_like(gate)
    _silu_mul_kernel[(triton.cdiv(gate.numel(), 1024),)](gate, up, out, gate.numel(), BLOCK=1024, num_warps=4)
    return out


@triton.jit
def _half_rotate(x1, x2, cosine, sine, sign: tl.constexpr, dtype: tl.constexpr):
    """One half of a rotated head, each product rounded first."""
    straight = (x1 * cosine).to(dtype).to(tl.float32)
    crossed = (x2 * sine).to(dtype).to(tl.float32)
    return (straight + sign * crossed).to(dtype)


@triton.jit
def _rotate_store_kernel(
    q_ptr, k_ptr, v_ptr, key_ptr, value_ptr, slot_ptr, position_ptr, cosine_ptr, sine_ptr, q_weight_ptr, k_weight_ptr,
    eps, heads, kv_heads, stride_slot, stride_head, NORM: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half: tl.constexpr = HEAD_DIM // 2
    low = tl.arange(0, half)
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    slot = tl.load(slot_ptr + token).to(tl.int64)
    position = tl.load(position_ptr + token).to(tl.int64)
    kv = tl.where(head < heads, 0, (head - heads) % kv_heads)
    place = slot * stride_slot + kv * stride_head + position * HEAD_DIM
    if head >= heads + kv_heads:
        source = v_ptr + (token * kv_heads + kv) * HEAD_DIM
        tl.store(value_ptr + place + low, tl.load(source + low))
        tl.store(value_ptr + place + half + low, tl.load(source + half + low))
    else:
        is_query = head < heads
        source = k_ptr + (token * kv_heads + kv) * HEAD_DIM
        weight_ptr = k_weight_ptr
        if is_query:
            source = q_ptr + (token * heads + head) * HEAD_DIM
            weight_ptr = q_weight_ptr
        x1 = tl.load(source + low).to(tl.float32)
        x2 = tl.load(source + half + low).to(tl.float32)
        if NORM:
            scale = tl.rsqrt((tl.sum(x1 * x1, axis=0) + tl.sum(x2 * x2, axis=0)) / HEAD_DIM + eps)
            x1 = ((x1 * scale).to(dtype).to(tl.float32) * tl.load(weight_ptr + low).to(tl.float32)).to(dtype)
            x2 = ((x2 * scale).to(dtype).to(tl.float32) * tl.load(weight_ptr + half + low).to(tl.float32)).to(dtype)
            x1, x2 = x1.to(tl.float32), x2.to(tl.float32)
        cosine = tl.load(cosine_ptr + position * HEAD_DIM + low).to(tl.float32)
        sine = tl.load(sine_ptr + position * HEAD_DIM + low).to(tl.float32)
        first = _half_rotate(x1, x2, cosine, sine, -1.0, dtype)
        second = _half_rotate(x2, x1, cosine, sine, 1.0, dtype)
        target = key_ptr + place
        if is_query:
            target = q_ptr + (token * heads + head) * HEAD_DIM
        tl.store(target + low, first)
        tl.store(target + half + low, second)


def rotate_store(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slot_N: Tensor, position_N: Tensor,
    cosine: Tensor, sine: Tensor, norms: tuple[Tensor, Tensor] | None, eps: float,
) -> None:  # fmt: skip
    """Normalise (Qwen3) and rotate queries in place; rotate keys and put keys and values into their slots."""
    tokens, heads, head_dim = query.shape
    kv_heads = key.shape[1]
    q_weight, k_weight = norms if norms is not None else (cosine, cosine)
    _rotate_store_kernel[(tokens, heads + 2 * kv_heads)](
        query, key, value, keys, values, slot_N, position_N, cosine, sine, q_weight, k_weight, eps, heads, kv_heads,
        keys.stride(0), keys.stride(1), NORM=norms is not None, HEAD_DIM=head_dim, num_warps=1,
    )  # fmt: skip


@triton.jit
def _attention_step(q, k, v, visible, scale, acc, top, total):
    """Fold one tile of keys and values into a running softmax."""
    score = tl.where(visible, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
    new_top = tl.maximum(top, tl.max(score, axis=1))
    weight = tl.exp(score - new_top[:, None])
    fade = tl.exp(top - new_top)
    acc = acc * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
    return acc, new_top, total * fade + tl.sum(weight, axis=1)


@triton.jit
def _decode_kernel(
    q_ptr, key_ptr, value_ptr, out_ptr, slot_ptr, position_ptr, scale, heads, stride_slot, stride_head,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    token, kv = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slot_ptr + token).to(tl.int64)
    length = tl.load(position_ptr + token) + 1
    member, column, reach = tl.arange(0, BLOCK_H), tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_N)
    row = (token * heads + kv * GROUP + member[:, None]) * HEAD_DIM + column[None, :]
    mine = member[:, None] < GROUP
    q = tl.load(q_ptr + row, mask=mine, other=0.0)
    base = slot * stride_slot + kv * stride_head
    top = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, HEAD_DIM], tl.float32)
    for start in range(0, length, BLOCK_N):
        seen = start + reach < length
        tile = base + (start + reach[:, None]) * HEAD_DIM + column[None, :]
        k = tl.load(key_ptr + tile, mask=seen[:, None], other=0.0)
        v = tl.load(value_ptr + tile, mask=seen[:, None], other=0.0)
        acc, top, total = _attention_step(q, k, v, seen[None, :], scale, acc, top, total)
    tl.store(out_ptr + row, (acc / total[:, None]).to(q.dtype), mask=mine)


def decode_attention(
    query: Tensor, keys: Tensor, values: Tensor, slot_B: Tensor, position_B: Tensor, scale: float
) -> Tensor:
    """One query per row over its slot's first `position + 1` tokens; the heads that share keys go together."""
    tokens, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    out = torch.empty_like(query)
    group = heads // kv_heads
    _decode_kernel[(tokens, kv_heads)](
        query, keys, values, out, slot_B, position_B, scale, heads, keys.stride(0), keys.stride(1),
        GROUP=group, HEAD_DIM=head_dim, BLOCK_H=max(16, triton.next_power_of_2(group)), BLOCK_N=64,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


@triton.jit
def _prefill_kernel(
    q_ptr, key_ptr, value_ptr, out_ptr, slot_ptr, row_ptr, count_ptr, position_ptr, scale, heads, stride_slot,
    stride_head, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slot_ptr + block).to(tl.int64)
    first, count = tl.load(row_ptr + block).to(tl.int64), tl.load(count_ptr + block)
    position = tl.load(position_ptr + block)
    member, column, reach = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_N)
    row = ((first + member[:, None]) * heads + head) * HEAD_DIM + column[None, :]
    mine = member[:, None] < count
    q = tl.load(q_ptr + row, mask=mine, other=0.0)
    base = slot * stride_slot + (head // GROUP) * stride_head
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start in range(0, position + count, BLOCK_N):
        inside = start + reach < position + count
        tile = base + (start + reach[:, None]) * HEAD_DIM + column[None, :]
        k = tl.load(key_ptr + tile, mask=inside[:, None], other=0.0)
        v = tl.load(value_ptr + tile, mask=inside[:, None], other=0.0)
        visible = start + reach[None, :] <= position + member[:, None]
        acc, top, total = _attention_step(q, k, v, visible, scale, acc, top, total)
    tl.store(out_ptr + row, (acc / total[:, None]).to(q.dtype), mask=mine)


PREFILL_ROWS = 64


def prefill_attention(
    query: Tensor, keys: Tensor, values: Tensor, blocks: tuple[Tensor, Tensor, Tensor, Tensor], scale: float
) -> Tensor:
    """Causal attention of runs of queries over their slots; a block is (slot, first row, rows ≤ 64, first position)."""
    _, heads, head_dim = query.shape
    out = torch.empty_like(query)
    slot, row, count, position = blocks
    _prefill_kernel[(slot.numel(), heads)](
        query, keys, values, out, slot, row, count, position, scale, heads, keys.stride(0), keys.stride(1),
        GROUP=heads // keys.shape[1], HEAD_DIM=head_dim, BLOCK_M=PREFILL_ROWS, BLOCK_N=64, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


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
    id_ptr, logprob_ptr, width, chunks, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
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
    tl.store(token_ptr + slot, token.to(tl.int64))
    tl.store(length_ptr + slot, (position + 1).to(tl.int64))


def sample(
    logits_BV: Tensor, slot_B: Tensor, position_B: Tensor, temperature_S: Tensor, seed_S: Tensor, token_S: Tensor,
    length_S: Tensor, id_B: Tensor, logprob_B: Tensor,
) -> None:  # fmt: skip
    """Draw one token per row by inverting its distribution, and leave it ready to be fed back.

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
        width, chunks, CHUNK=SAMPLE_CHUNK, CHUNKS=triton.next_power_of_2(chunks), num_warps=4,
    )  # fmt: skip
