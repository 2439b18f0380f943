"""What a step scale is: a factor on each optimiser step, made from what the step's micro-batches showed."""

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
    """The scale of one optimiser step, what it came from and where it goes."""

    value: float
    measured: float
    threshold: float
    apply: Apply
    metric: str = "train/clip_bias"
    """The name under which a run records what was measured."""


class StepScale(Protocol):
    """Stateful, one per run. For each optimiser step: `observe` every micro-batch before its backward pass, then
    `finish` once."""

    def observe(self, loss: Loss, scores: Scores, parameters: Sequence[Tensor] = ()) -> None:
        """Add one micro-batch: its loss, the scores that it came from, and the trained parameters. Scores of sequences
        that cannot move the policy may come without a gradient."""
        ...

    def finish(self, reduce: Reduce = alone) -> Scale:
        """The scale of this step, over all micro-batches and ranks; the next step starts afresh."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        ...
