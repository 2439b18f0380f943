"""Step scales: a factor on each optimiser step, computed from the step's micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from turnwise.batch import Scores
from turnwise.ops.terms import Loss
from turnwise.ranks import Reduce, alone

Apply = Literal["step", "gradient"]
ON_GRADIENT = "apply=gradient: Adam divides the factor out again; near-inert or harmful in our pilot, step worked"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The scale of one optimiser step, the measurement behind it, and what it multiplies."""

    value: float
    measured: float
    threshold: float
    apply: Apply
    metric: str = "train/clip_bias"
    """The metric name under which a run records the measurement."""


class StepScale(Protocol):
    """Stateful, one per run. For each optimiser step: `observe` every micro-batch before its backward pass, then
    `finish` once."""

    def observe(self, loss: Loss, scores: Scores, parameters: Sequence[Tensor] = ()) -> None:
        """Add one micro-batch: its loss, its scores, and the trained parameters. Scores of sequences that cannot move
        the policy may have no gradient."""
        ...

    def finish(self, reduce: Reduce = alone) -> Scale:
        """The scale of this step, over all micro-batches and ranks; resets for the next step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict()`."""
        ...
