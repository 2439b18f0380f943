"""Optimiser state in the host's memory: brought to the GPU piece by piece, and taken back."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from turnwise.learn.adam import Piece, Step

STREAMS = 3
"""One piece comes while another is stepped and a third goes."""


def pinned(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Zeros in host memory that a GPU copies from without waiting."""
    host = torch.zeros(shape, dtype=dtype)
    if torch.cuda.is_available() and host.numel():
        # torch's own pinned memory is rounded up to a power of two: almost twice as much for some weights.
        runtime: Any = torch.cuda.cudart()
        place = host.data_ptr()
        torch.cuda.check_error(runtime.cudaHostRegister(place, host.nbytes, 0))
        weakref.finalize(host, runtime.cudaHostUnregister, place)
    return host


def step_offloaded(work: Iterable[tuple[Piece, Step]], take_step: Callable[[Piece, Step], None]) -> None:
    """Step pieces whose `kept` tensors are in the host's memory."""
    here, streams = torch.cuda.current_stream(), _streams()
    staged: list[dict[str, Tensor]] = [{} for _ in streams]
    for stream in streams:
        stream.wait_stream(here)
    for number, (piece, step) in enumerate(work):
        stream, buffers = streams[number % STREAMS], staged[number % STREAMS]
        with torch.cuda.stream(stream):
            kept = {name: _staging(buffers, name, host, piece.weight) for name, host in piece.kept.items()}
            _copy(piece.kept, kept)
            take_step(replace(piece, kept=kept), step)
            _copy(kept, piece.kept)
    for stream in streams:
        here.wait_stream(stream)


@cache
def _streams() -> list[torch.cuda.Stream]:
    """Always the same ones: memory that a stream has freed is for that stream alone."""
    return [torch.cuda.Stream() for _ in range(STREAMS)]


def _staging(buffers: dict[str, Tensor], name: str, host: Tensor, weight: Tensor) -> Tensor:
    """Device memory for a piece of the state; a stream uses it for one piece after another."""
    key = f"{name} {host.dtype}"
    if key not in buffers or buffers[key].numel() < host.numel():
        buffers[key] = torch.empty(host.shape, dtype=host.dtype, device=weight.device)
    return buffers[key][: host.numel()]


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in source.items():
        target[name].copy_(tensor, non_blocking=True)
