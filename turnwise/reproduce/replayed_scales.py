"""Parts that only studies need; recipes name them as `turnwise.reproduce.replayed_scales:…`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from turnwise.batch import Scores
from turnwise.ops.clip_bias import ClipBiasScale
from turnwise.ops.step_scale import Apply, Scale
from turnwise.ops.terms import Loss
from turnwise.ranks import Reduce, alone


@dataclass(kw_only=True)
class RecordedScale(ClipBiasScale):
    """Clip-bias that remembers its factors, so that a control can replay them.

    scale = 1 / max(1, ‖C‖/c0)      (safe)
    """

    _factors: list[float] = field(default_factory=list[float], init=False, repr=False)

    def finish(self, reduce: Reduce = alone) -> Scale:
        """The scale of this step, which is also recorded."""
        scale = super().finish(reduce)
        self._factors.append(scale.value)
        return scale

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint; the control reads `factors`."""
        return {**super().state_dict(), "factors": list(self._factors)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict()`."""
        super().load_state_dict(state)
        self._factors = [float(factor) for factor in state["factors"]]


@dataclass(kw_only=True)
class ReplayedScale:
    """Factors from a list, one for each optimiser step, whatever happens in it; after the last it starts again.

    scale = factors[n]
    """

    factors: Sequence[float]
    apply: Apply = "step"
    _place: int = field(default=0, init=False, repr=False)

    def observe(self, loss: Loss, scores: Scores, parameters: Sequence[Tensor] = ()) -> None:
        """Nothing to observe."""

    def finish(self, reduce: Reduce = alone) -> Scale:
        """The next factor."""
        value = float(self.factors[self._place % len(self.factors)])
        self._place += 1
        return Scale(value=value, measured=0.0, threshold=1.0, apply=self.apply)

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint: the position in the list."""
        return {"place": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict()`."""
        self._place = int(state["place"])
