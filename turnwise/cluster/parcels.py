"""Weights on their way to players: tensors as plain bytes, which Ray shares between processes without copying."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnwise.engine.remote import ServerStanding


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """One tensor."""

    dtype: str
    shape: tuple[int, ...]
    content: NDArray[np.uint8]

    def open(self) -> Tensor:
        """The tensor, in writable memory."""
        flat = torch.from_numpy(self.content.copy())
        return flat.view(getattr(torch, self.dtype)).view(self.shape)


Parcels = Mapping[str, Parcel]


@dataclass(frozen=True, kw_only=True)
class VoiceNews:
    """What has changed in one voice of the cast."""

    label: str
    version: int
    parcels: Awaitable[Parcels] | None
    """Where its weights can be had; None: servers have them."""


@dataclass(frozen=True, kw_only=True)
class News:
    """What players must know before the next episode."""

    version: int
    """Of the policies that learn."""
    voices: Mapping[str, VoiceNews] = field(default_factory=dict[str, VoiceNews])
    pools: Mapping[str, Mapping[int, str]] = field(default_factory=dict[str, Mapping[int, str]])
    """The voice that holds each snapshot, by seat."""
    weights: Mapping[str, Mapping[int, float]] = field(default_factory=dict[str, Mapping[int, float]])
    """How likely each snapshot is to be drawn, by seat."""
    standings: Mapping[str, ServerStanding] = field(default_factory=dict[str, ServerStanding])
    """The servers of each voice, where voices sample on servers."""


def packed(weights: Iterable[tuple[str, Tensor]]) -> dict[str, Parcel]:
    """Named tensors as parcels."""
    return {name: _pack(tensor.detach()) for name, tensor in weights}


def _pack(tensor: Tensor) -> Parcel:
    content = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return Parcel(dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape), content=content)
