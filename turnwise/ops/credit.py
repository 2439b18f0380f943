"""What every advantage returns."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Credit:
    """An advantage per token, and the critic's target where there is a critic."""

    advantage_T: Tensor
    return_T: Tensor | None = None
