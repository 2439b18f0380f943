"""The device side of an engine: run prompt chunks, sample tokens, and return them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from turnwise.engine.attention import Attend, Chunk, DecodeAttend, PrefillAttend
from turnwise.engine.contract import Mixed
from turnwise.engine.memory import CacheShape, SlotCache
from turnwise.engine.runners import MixedRunner, Runner, make_runner
from turnwise.engine.sampling import counter_uniform, draw, most_likely, needs_restriction, restrict
from turnwise.engine.session import Request
from turnwise.expert_routing import ExpertRecorder, follow_routing
from turnwise.residual_stream import widen_residual


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """One new token of a request."""

    request: Request
    token: int
    logprob: float
    version: int
    top: Sequence[tuple[int, float]] = field(default_factory=tuple[tuple[int, float], ...])


class Backend(Protocol):
    """Launches work and collects results; a device may run ahead of what it has returned."""

    cache: SlotCache
    runs_ahead: bool
    """Whether it feeds sampled tokens back by itself, before returning them."""

    def begin(self, slot: int, *, seed: int, temperature: float) -> None:
        """Prepare the slot for a new request."""
        ...

    def prefill(
        self, ids: Sequence[int], chunks: Sequence[Chunk], completes: Sequence[Request | None], version: int
    ) -> None:
        """Run chunks of prompt tokens; where a chunk completes its request's prompt, sample the first token."""
        ...

    def decode(self, requests: Sequence[Request], version: int) -> None:
        """Sample one more token for each request."""
        ...

    def collect(self, *, wait: bool) -> list[Sampled]:
        """What has been sampled; with `wait`, everything that was launched."""
        ...

    def release(self) -> None:
        """Free the memory of keys and values, if nothing is being sampled."""
        ...


def make_backend(
    model: PreTrainedModel,
    *,
    capacity: int,
    slots: Callable[[CacheShape], int],
    mixed: Mixed | None = None,
    routing: bool = False,
) -> Backend:
    """The backend for the device that the model is on; mixtures, and models with experts, run in plain torch."""
    widen_residual(model)
    if routing:
        return TorchBackend(model, capacity=capacity, slots=slots, routing=True)
    if mixed is not None:
        widen_residual(mixed.model)
        runner = MixedRunner(make_runner(model, capacity), make_runner(mixed.model, capacity), mixed.mix)
        return TorchBackend(model, capacity=capacity, slots=slots, runner=runner)
    if model.device.type == "cuda":
        from turnwise.engine.cuda_backend import CudaBackend, suits

        if suits(model, capacity):
            return CudaBackend(model, capacity=capacity, slots=slots)
    return TorchBackend(model, capacity=capacity, slots=slots)


class TorchBackend:
    """Plain torch operations, one step at a time, on any device and for any causal LM."""

    runs_ahead = False

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        capacity: int,
        slots: Callable[[CacheShape], int],
        runner: Runner | None = None,
        routing: bool = False,
    ) -> None:
        self._runner, self._device = runner or make_runner(model, capacity), model.device
        shape = replace(self._runner.shape, experts=_followed(model)) if routing else self._runner.shape
        self.cache = SlotCache(shape, slots=slots(shape), capacity=capacity, device=model.device)
        self._seed_S = torch.zeros(self.cache.slots, dtype=torch.long)
        self._temperature_S = torch.ones(self.cache.slots)
        self._sampled: list[Sampled] = []

    def begin(self, slot: int, *, seed: int, temperature: float) -> None:
        self._seed_S[slot], self._temperature_S[slot] = seed, temperature

    def prefill(
        self, ids: Sequence[int], chunks: Sequence[Chunk], completes: Sequence[Request | None], version: int
    ) -> None:
        length = torch.tensor([chunk.length for chunk in chunks])
        slot_N = torch.tensor([chunk.slot for chunk in chunks]).repeat_interleave(length).to(self._device)
        position_N = torch.cat([torch.arange(c.position, c.position + c.length) for c in chunks]).to(self._device)
        attend = PrefillAttend(self.cache, chunks, slot_N, position_N)
        hidden_N = self._run(torch.tensor(ids, device=self._device), slot_N, position_N, attend)
        ready = [(chunk, request) for chunk, request in zip(chunks, completes, strict=True) if request is not None]
        if ready:
            last = torch.tensor([chunk.start + chunk.length - 1 for chunk, _ in ready], device=self._device)
            self._sample(self._runner.logits(hidden_N[last]), [request for _, request in ready], version)

    def decode(self, requests: Sequence[Request], version: int) -> None:
        slot_B = torch.tensor([request.slot for request in requests], device=self._device)
        position_B = torch.tensor([r.prompt + r.launched - 1 for r in requests], device=self._device)
        id_B = torch.tensor([request.ids[-1] for request in requests], device=self._device)
        hidden_B = self._run(id_B, slot_B, position_B, DecodeAttend(self.cache, slot_B, position_B))
        self._sample(self._runner.logits(hidden_B), requests, version)

    def collect(self, *, wait: bool) -> list[Sampled]:
        sampled, self._sampled = self._sampled, []
        return sampled

    def release(self) -> None:
        self.cache.release()

    def _run(self, id_N: Tensor, slot_N: Tensor, position_N: Tensor, attend: Attend) -> Tensor:
        if not self.cache.records:
            return self._runner.hidden(id_N, position_N, attend)
        recording = ExpertRecorder()
        hidden_N = self._runner.hidden(id_N, position_N, attend, recording)
        self.cache.write_experts(slot_N, position_N, recording.experts())
        return hidden_N

    def _sample(self, logits_BV: Tensor, requests: Sequence[Request], version: int) -> None:
        slot_B = torch.tensor([request.slot for request in requests])
        position_B = torch.tensor([request.prompt + request.launched for request in requests])
        uniform_B = counter_uniform(self._seed_S[slot_B], position_B).to(self._device)
        if any(needs_restriction(request.params) for request in requests):
            logits_BV = restrict(logits_BV, [request.params for request in requests])
        id_B, logprob_B = draw(logits_BV, uniform_B, self._temperature_S[slot_B].to(self._device))
        for row, (token, logprob) in enumerate(zip(id_B.tolist(), logprob_B.tolist(), strict=True)):
            params = requests[row].params
            top = most_likely(logits_BV[row], params) if params.top_logprobs else ()
            self._sampled.append(Sampled(request=requests[row], token=token, logprob=logprob, version=version, top=top))


def _followed(model: PreTrainedModel) -> int:
    """How many choices a token has; ValueError if the model has no experts to record."""
    if columns := follow_routing(model):
        return columns
    raise ValueError(
        f"{type(model).__name__} has no experts that could be recorded; set algorithm.routing=free, or use a "
        "mixture of experts such as pico-moe"
    )
