"""What an engine samples from where that is not the learner's own module: a whole copy, maybe in fewer bits."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from turnwise.policy.sharding import whole
from turnwise.policy.text import TextPolicy

SamplingPrecision = Literal["same", "bf16", "int8"]


class SamplingCopy:
    """A copy of a policy that `refresh` brings up to date.

    `bf16` computes in bf16; `int8` computes as the policy does, with matrices whose rows were rounded to 255 levels.
    """

    def __init__(self, policy: TextPolicy, precision: SamplingPrecision = "same") -> None:
        self._policy, self._precision = policy, precision
        self._copy = policy.twin(shares=precision == "same")
        if precision == "bf16":
            for parameter in self.model.parameters():  # not the buffers: positions need all their bits
                parameter.data = parameter.data.to(torch.bfloat16)

    @property
    def model(self) -> PreTrainedModel:
        """The module to sample from."""
        return self._copy.model

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the policy's weights. Every rank must call it."""
        if self._precision == "same":
            self._policy.refresh(self._copy)
            return
        copies = dict(self.model.named_parameters())
        for name, parameter in self._policy.model.named_parameters():
            weight = whole(parameter)
            copies[name].copy_(rounded(weight) if self._precision == "int8" and weight.dim() > 1 else weight)


def rounded(weight: Tensor) -> Tensor:
    """Every row as multiples of its largest weight over 127."""
    step = weight.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny) / 127
    return (weight / step).round() * step
