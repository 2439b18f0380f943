"""The engine on a CUDA device: captured graphs, fused kernels, sampled tokens fed back without asking the host.

The host reads the sampled tokens a few steps later and discards those sampled past a stop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding
from transformers import PreTrainedModel

from turnwise.engine import kernels, sampling_kernels
from turnwise.engine.attention import Chunk
from turnwise.engine.backends import Sampled
from turnwise.engine.memory import CacheShape, SlotCache
from turnwise.engine.runners import cache_shape, head_logits, is_plain_llama, linear
from turnwise.engine.sampling import counter_uniform, draw, most_likely, needs_restriction, restrict
from turnwise.engine.session import Request

RUN_AHEAD = 2
"""Steps the device may be ahead of what the host has read: one hides the host's work, two its hiccups."""


def suits(model: PreTrainedModel, capacity: int) -> bool:
    """Whether the kernels cover this model; others run on plain torch operations."""
    head_dim = cache_shape(model).head_dim
    return is_plain_llama(model, capacity) and head_dim in (16, 32, 64, 128, 256)


@dataclass(frozen=True, kw_only=True)
class _Flight:
    """A launched step: where its results will be, and for whom."""

    ready: torch.cuda.Event
    id_B: Tensor
    logprob_B: Tensor
    requests: Sequence[Request]
    version: int


class CudaBackend:
    """Decode steps as captured graphs, one per batch size; prompts in chunks through the same kernels."""

    runs_ahead = True

    def __init__(self, model: PreTrainedModel, *, capacity: int, slots: Callable[[CacheShape], int]) -> None:
        shape = cache_shape(model)
        self._device = model.device
        self.cache = SlotCache(shape, slots=slots(shape), capacity=capacity, device=model.device)
        self._model = _FusedModel(model, self.cache)
        count = self.cache.slots + 1
        self._token_S = torch.zeros(count, dtype=torch.long, device=model.device)
        self._length_S = torch.zeros(count, dtype=torch.long, device=model.device)
        self._seed_S, self._temperature_S = torch.zeros_like(self._token_S), torch.ones(count, device=model.device)
        self._host_seed_S, self._host_temperature_S = torch.zeros(count, dtype=torch.long), torch.ones(count)
        self._settings_changed = True
        self._graphs: dict[int, _Graph] = {}
        self._flights: deque[_Flight] = deque()
        self._landed: list[Sampled] = []

    def begin(self, slot: int, *, seed: int, temperature: float) -> None:
        self._host_seed_S[slot], self._host_temperature_S[slot] = seed, temperature
        self._settings_changed = True

    def prefill(
        self, ids: Sequence[int], chunks: Sequence[Chunk], completes: Sequence[Request | None], version: int
    ) -> None:
        self._upload_settings()
        plan = _Plan.of(chunks, self._device)
        hidden_N = self._model.prefill(torch.tensor(ids, device=self._device), plan)
        ready = [(chunk, request) for chunk, request in zip(chunks, completes, strict=True) if request is not None]
        if not ready:
            return
        last = torch.tensor([chunk.start + chunk.length - 1 for chunk, _ in ready], device=self._device)
        requests = [request for _, request in ready]
        self._sample(self._model.logits(hidden_N[last]), plan.slot_N[last], plan.position_N[last], requests, version)

    def decode(self, requests: Sequence[Request], version: int) -> None:
        self._upload_settings()
        slots = [request.slot for request in requests]
        if any(needs_restriction(request.params) for request in requests):
            slot_B = torch.tensor(slots, device=self._device)
            position_B = self._length_S[slot_B]
            hidden_B = self._model.decode(self._token_S[slot_B], slot_B, position_B)
            self._sample(self._model.logits(hidden_B), slot_B, position_B, requests, version)
            return
        graph = self._graph(len(slots))
        graph.launch(slots)
        self._fly(graph.id_B, graph.logprob_B, requests, version)

    def collect(self, *, wait: bool) -> list[Sampled]:
        while self._flights and (wait or len(self._flights) > RUN_AHEAD):
            self._land(self._flights.popleft())
        landed, self._landed = self._landed, []
        return landed

    def release(self) -> None:
        # Graphs hold addresses in the cache: they are captured again when they are next needed.
        self._graphs.clear()
        self.cache.release()
        torch.cuda.empty_cache()

    def _upload_settings(self) -> None:
        if self._settings_changed:
            self._seed_S.copy_(self._host_seed_S)
            self._temperature_S.copy_(self._host_temperature_S)
            self._settings_changed = False

    def _sample(
        self, logits_BV: Tensor, slot_B: Tensor, position_B: Tensor, requests: Sequence[Request], version: int
    ) -> None:
        if any(needs_restriction(request.params) for request in requests):
            self._sample_restricted(logits_BV, slot_B, position_B, requests, version)
            return
        id_B = torch.empty(len(requests), dtype=torch.long, device=self._device)
        logprob_B = torch.empty(len(requests), device=self._device)
        self._draw(logits_BV, slot_B, position_B, id_B, logprob_B)
        self._fly(id_B, logprob_B, requests, version)

    def _draw(self, logits_BV: Tensor, slot_B: Tensor, position_B: Tensor, id_B: Tensor, logprob_B: Tensor) -> None:
        sampling_kernels.sample(
            logits_BV,
            slot_B,
            position_B,
            self._temperature_S,
            self._seed_S,
            self._token_S,
            self._length_S,
            id_B,
            logprob_B,
        )

    def _sample_restricted(
        self, logits_BV: Tensor, slot_B: Tensor, position_B: Tensor, requests: Sequence[Request], version: int
    ) -> None:
        """Truncated sampling row by row: rare in training, so it may wait for the host."""
        logits_BV = restrict(logits_BV, [request.params for request in requests])
        uniform_B = counter_uniform(self._seed_S[slot_B], position_B + 1)
        id_B, logprob_B = draw(logits_BV, uniform_B, self._temperature_S[slot_B])
        self._token_S[slot_B], self._length_S[slot_B] = id_B, position_B + 1
        self._landed = self.collect(wait=True)  # earlier tokens come first
        for row, (token, logprob) in enumerate(zip(id_B.tolist(), logprob_B.tolist(), strict=True)):
            params = requests[row].params
            top = most_likely(logits_BV[row], params) if params.top_logprobs else ()
            self._landed.append(Sampled(request=requests[row], token=token, logprob=logprob, version=version, top=top))

    def _fly(self, id_B: Tensor, logprob_B: Tensor, requests: Sequence[Request], version: int) -> None:
        count = len(requests)
        ids = torch.empty(count, dtype=torch.long, pin_memory=True).copy_(id_B[:count], non_blocking=True)
        logprobs = torch.empty(count, pin_memory=True).copy_(logprob_B[:count], non_blocking=True)
        ready = torch.cuda.Event()
        ready.record()
        self._flights.append(_Flight(ready=ready, id_B=ids, logprob_B=logprobs, requests=requests, version=version))

    def _land(self, flight: _Flight) -> None:
        flight.ready.synchronize()
        results = zip(flight.requests, flight.id_B.tolist(), flight.logprob_B.tolist(), strict=True)
        self._landed.extend(
            Sampled(request=request, token=token, logprob=logprob, version=flight.version)
            for request, token, logprob in results
        )

    def _graph(self, rows: int) -> _Graph:
        size = _padded(rows)
        if size not in self._graphs:
            self._graphs[size] = _Graph(size, self)
        return self._graphs[size]

    def step(self, slot_B: Tensor, id_B: Tensor, logprob_B: Tensor) -> None:
        """One decode step on device state alone: what a graph captures."""
        position_B = self._length_S[slot_B]
        hidden_B = self._model.decode(self._token_S[slot_B], slot_B, position_B)
        self._draw(self._model.logits(hidden_B), slot_B, position_B, id_B, logprob_B)


def _padded(rows: int) -> int:
    """The batch size whose graph serves this many rows: few graphs, and at most a third of padding."""
    for size in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256):
        if rows <= size:
            return size
    return -(-rows // 64) * 64


class _Graph:
    """A captured decode step for up to `size` slots."""

    def __init__(self, size: int, backend: CudaBackend) -> None:
        device, self._scratch = backend.cache.device, backend.cache.scratch
        self._slot_B = torch.full((size,), self._scratch, dtype=torch.long, device=device)
        self._slots: list[int] = []
        self.id_B = torch.zeros(size, dtype=torch.long, device=device)
        self.logprob_B = torch.zeros(size, device=device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # kernels compile and libraries set themselves up outside the capture
            for _ in range(2):
                backend.step(self._slot_B, self.id_B, self.logprob_B)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            backend.step(self._slot_B, self.id_B, self.logprob_B)

    def launch(self, slots: list[int]) -> None:
        if slots != self._slots:
            padded = slots + [self._scratch] * (self._slot_B.numel() - len(slots))
            self._slot_B.copy_(torch.tensor(padded))
            self._slots = slots
        self._graph.replay()


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """Prompt chunks in the kernels' layout: per token, and per block of at most 64 rows."""

    slot_N: Tensor
    position_N: Tensor
    blocks: tuple[Tensor, Tensor, Tensor, Tensor]

    @classmethod
    def of(cls, chunks: Sequence[Chunk], device: torch.device) -> _Plan:
        length = torch.tensor([chunk.length for chunk in chunks])
        slot_N = torch.tensor([chunk.slot for chunk in chunks]).repeat_interleave(length)
        position_N = torch.cat([torch.arange(c.position, c.position + c.length) for c in chunks])
        blocks = [
            (chunk.slot, chunk.start + row, min(kernels.PREFILL_ROWS, chunk.length - row), chunk.position + row)
            for chunk in chunks
            for row in range(0, chunk.length, kernels.PREFILL_ROWS)
        ]
        slot, first, count, position = torch.tensor(blocks, dtype=torch.int32).to(device).unbind(1)
        tables = (slot.contiguous(), first.contiguous(), count.contiguous(), position.contiguous())
        return cls(slot_N=slot_N.to(device), position_N=position_N.to(device), blocks=tables)


class _FusedModel:
    """A Llama-family model on its own weights: library matrix products, fused kernels for the rest."""

    def __init__(self, model: PreTrainedModel, cache: SlotCache) -> None:
        body: Any = model.model
        self._cache = cache
        self._embed, self._layers, self._norm = body.embed_tokens, list(body.layers), body.norm
        self._head: Any = model.get_output_embeddings()
        self._scale = float(self._layers[0].self_attn.scaling)
        self._head_dim = cache.keys[0].shape[-1]
        probe = torch.zeros(1, dtype=model.dtype, device=model.device)
        positions = torch.arange(cache.capacity, device=model.device)[None]
        cosine, sine = body.rotary_emb(probe, positions)
        self._cosine, self._sine = cosine[0].contiguous(), sine[0].contiguous()

    def decode(self, id_B: Tensor, slot_B: Tensor, position_B: Tensor) -> Tensor:
        def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return kernels.decode_attention(query, keys, values, slot_B, position_B, self._scale)

        return self._run(id_B, slot_B, position_B, attend)

    def prefill(self, id_N: Tensor, plan: _Plan) -> Tensor:
        def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return kernels.prefill_attention(query, keys, values, plan.blocks, self._scale)

        return self._run(id_N, plan.slot_N, plan.position_N, attend)

    def logits(self, hidden_B: Tensor) -> Tensor:
        return head_logits(self._head, hidden_B)

    def _run(
        self, id_N: Tensor, slot_N: Tensor, position_N: Tensor, attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        x, residual = embedding(id_N, self._embed.weight).float(), None  # see residual_stream.py
        for number, layer in enumerate(self._layers):
            norm = layer.input_layernorm
            normed, residual = kernels.add_norm(x, residual, norm.weight, norm.variance_epsilon)
            x = self._attention(number, layer.self_attn, normed, slot_N, position_N, attend)
            norm = layer.post_attention_layernorm
            normed, residual = kernels.add_norm(x, residual, norm.weight, norm.variance_epsilon)
            mlp = layer.mlp
            x = linear(mlp.down_proj, kernels.silu_mul(linear(mlp.gate_proj, normed), linear(mlp.up_proj, normed)))
        return kernels.add_norm(x, residual, self._norm.weight, self._norm.variance_epsilon)[0]

    def _attention(
        self,
        number: int,
        block: Any,
        x: Tensor,
        slot_N: Tensor,
        position_N: Tensor,
        attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        rows, head_dim = x.shape[0], self._head_dim
        query, key, value = (
            linear(projection, x).view(rows, -1, head_dim) for projection in (block.q_proj, block.k_proj, block.v_proj)
        )
        keys, values = self._cache.keys[number], self._cache.values[number]
        norms = (block.q_norm.weight, block.k_norm.weight) if hasattr(block, "q_norm") else None
        eps = block.q_norm.variance_epsilon if norms is not None else 0.0
        kernels.rotate_store(query, key, value, keys, values, slot_N, position_N, self._cosine, self._sine, norms, eps)
        return linear(block.o_proj, attend(query, keys, values).view(rows, -1))
