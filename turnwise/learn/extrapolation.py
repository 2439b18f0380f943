"""Extrapolation of weights after a step, and the weights that it starts from."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from turnwise.algorithm import Algorithm, Trait
from turnwise.algorithm.axes import EXTRAPOLATE
from turnwise.algorithm.parts import bind
from turnwise.learn.optimizer import Optimizer
from turnwise.ranks import Ranks


class Extrapolation:
    """Moves weights on after the updates of a step; keeps what the updates of the step before had made of them."""

    def __init__(self, part: Callable[[Tensor, Tensor], Tensor], optimizer: Optimizer) -> None:
        self._part, self._optimizer = part, optimizer
        self.before: dict[str, Tensor] = {}
        """The un-extrapolated weights of the step before, this rank's part of each, in single precision."""
        self.restart()

    @classmethod
    def of(cls, row: Algorithm, optimizer: Optimizer) -> Extrapolation | None:
        """The row's own; None if weights stay as the updates leave them."""
        neutral = Trait.NEUTRAL in row.facts("extrapolate")
        return None if neutral else cls(bind(EXTRAPOLATE, row.extrapolate), optimizer)

    def restart(self) -> None:
        """Begin at the present weights."""
        self.before = {name: weight.clone() for name, weight in self._optimizer.wide_weights()}

    @torch.no_grad()
    def take(self, ranks: Ranks) -> float:
        """Extrapolate every weight; returns the norm of the change."""
        norms: dict[str, Tensor] = {}

        def extrapolate(name: str, now: Tensor) -> Tensor:
            target = self._part(now, self.before[name])
            norms[name] = torch.linalg.vector_norm(target - now)
            self.before[name].copy_(now)
            return target

        self._optimizer.rewrite(extrapolate)
        return float(self._optimizer.norm_over(ranks, norms))
