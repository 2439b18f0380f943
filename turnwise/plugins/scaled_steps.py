"""Step scales inside other trainers: the learning rate shrinks for one optimiser step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from turnwise.algorithm import Algorithm, Loss, make_scale
from turnwise.batch import Scores
from turnwise.ops.step_scale import Scale
from turnwise.ranks import Reduce


class ScaledSteps:
    """Multiplies the learning rates of the optimiser step that follows the observed losses.

    Without an optimiser it is the next step of any optimiser in this process, for hosts that do not show theirs to a
    loss. A row without a scale leaves every step as it is.
    """

    def __init__(self, row: Algorithm, *, reduce: Reduce, optimizer: Optimizer | None = None) -> None:
        self.last: Scale | None = None
        """The scale of the latest step."""
        self._scale, self._reduce, self._waiting = make_scale(row), reduce, False
        self._rates: list[Any] = []
        if self._scale is None:
            return
        before, after = register_optimizer_step_pre_hook, register_optimizer_step_post_hook
        if optimizer is not None:
            before, after = optimizer.register_step_pre_hook, optimizer.register_step_post_hook
        self._hooks = before(self._shrink), after(self._restore)

    def observe(self, loss: Loss, scores: Scores) -> None:
        """Add one micro-batch of the coming step, before its backward pass."""
        if self._scale is not None:
            self._scale.observe(loss, scores)
            self._waiting = True

    def finish(self) -> float:
        """The factor of the coming step, over all processes; for hosts whose steps take a learning rate."""
        if self._scale is None:
            return 1.0
        self._waiting = False
        self.last = self._scale.finish(self._reduce)
        return self.last.value

    def metrics(self) -> dict[str, float]:
        """The latest scale and what it was measured from."""
        if self.last is None:
            return {}
        return {"turnwise/scale": self.last.value, self.last.metric.replace("train/", "turnwise/"): self.last.measured}

    def _shrink(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._waiting:
            return
        factor = self.finish()
        self._rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor

    def _restore(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self._rates, strict=False):
            group["lr"] = rate
        self._rates = []


def over_processes(values: Tensor) -> Tensor:
    """The sum over the processes of `torch.distributed`, if there are several."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return values
    summed = values.clone()
    torch.distributed.all_reduce(summed)
    return summed
