"""AdamW with full-precision steps whatever the weights' dtype, and state as named tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from turnwise.ranks import Ranks

_BUCKET = 2**24
"""Numbers that ranks sum at once: few sums, and little memory besides the gradients."""
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Optimizer:
    """AdamW over named parameters.

    Half-precision weights get a single-precision copy that takes the steps: steps of 1e-6 would be rounded away.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], *, betas: tuple[float, float], weight_decay: float
    ) -> None:
        self.parameters = dict(parameters)
        self._masters = {
            name: nn.Parameter(parameter.detach().float(), requires_grad=True)
            for name, parameter in self.parameters.items()
            if parameter.dtype != torch.float32
        }
        targets = [self._masters.get(name, parameter) for name, parameter in self.parameters.items()]
        on_cuda = all(target.is_cuda for target in targets)
        self._adam = torch.optim.AdamW(targets, lr=0.0, betas=betas, weight_decay=weight_decay, fused=on_cuda or None)

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def sum_gradients(self, ranks: Ranks) -> None:
        """Sum the gradients of all ranks, each computed from that rank's tokens."""
        if ranks.size == 1:
            return
        for bucket in _buckets(self.parameters.values()):
            mine = [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]
            total = ranks.reduce(torch.cat([gradient.flatten().float() for gradient in mine]))
            for parameter, part in zip(bucket, total.split([each.numel() for each in bucket]), strict=True):
                parameter.grad = part.view_as(parameter).to(parameter.dtype)

    def clip(self, limit: float, *, scale: float = 1.0) -> float:
        """Scale the gradient, clip its norm to the limit, and return the norm between the two."""
        gradients = [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]
        if scale != 1.0:
            for gradient in gradients:
                gradient.mul_(scale)
        return float(nn.utils.clip_grad_norm_(self.parameters.values(), limit))

    def step(self, learning_rate: float) -> None:
        """Update the weights."""
        for name, master in self._masters.items():
            gradient = self.parameters[name].grad
            master.grad = None if gradient is None else gradient.float()
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        self._adam.step()
        with torch.no_grad():
            for name, master in self._masters.items():
                self.parameters[name].copy_(master)

    def tensors(self) -> dict[str, Tensor]:
        """Moments and single-precision weights by name, for a checkpoint."""
        kept = {f"master.{name}": master.detach() for name, master in self._masters.items()}
        for name, target in self._targets():
            for moment in _MOMENTS:
                if target in self._adam.state:
                    kept[f"{moment}.{name}"] = self._adam.state[target][moment]
        return kept

    def load_tensors(self, kept: Mapping[str, Tensor]) -> None:
        """Restore from `tensors()`."""
        with torch.no_grad():
            for name, master in self._masters.items():
                master.copy_(kept[f"master.{name}"])
        self._adam.state.clear()
        for name, target in self._targets():
            if f"step.{name}" in kept:
                # Moments go to the weights' device; the counter stays where Adam keeps it.
                moments = {moment: kept[f"{moment}.{name}"].to(target.device) for moment in _MOMENTS}
                moments["step"] = moments["step"] if self._adam.defaults["fused"] else moments["step"].cpu()
                self._adam.state[target] = moments

    def _targets(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, self._masters.get(name, parameter)) for name, parameter in self.parameters.items()]


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Neighbouring parameters with about `_BUCKET` numbers together."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        bucket.append(parameter)
        if sum(each.numel() for each in bucket) >= _BUCKET:
            yield bucket
            bucket = []
    if bucket:
        yield bucket
