"""CUDA kernels of the decode path, in Triton. They round where transformers rounds, so that log-probs agree."""

# Triton is only installed with CUDA, and pyright cannot type its launch syntax.
# pyright: reportMissingImports=false, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, sum_ptr, width, eps, ADD: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(x_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + row * width + column, mask=inside, other=0.0)
        tl.store(sum_ptr + row * width + column, x, mask=inside)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    normed = x * tl.rsqrt(tl.sum(x * x, axis=0) / width + eps) * weight
    tl.store(out_ptr + row * width + column, normed.to(out_ptr.dtype.element_ty), mask=inside)


def add_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(norm(x + residual), x + residual) in one pass over the rows; the sum stays in float32."""
    out = torch.empty_like(x, dtype=weight.dtype)
    total = x if residual is None else torch.empty_like(residual)
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
