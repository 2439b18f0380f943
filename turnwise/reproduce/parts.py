"""Parts of rows that only studies need; recipes name them as `turnwise.reproduce.parts:…`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from turnwise.ops.clip_bias import Apply, ClipBiasScale, Scale
from turnwise.ops.normalizers import Reduce, alone
from turnwise.types import Group, StopReason, Trajectory

_CUT = (StopReason.MAX_TOKENS, StopReason.CONTEXT_FULL)


def cut_is_lost(group: Group) -> Group:
    """Count a turn that never ended as the end of the episode: nothing is left out, but nothing bootstraps either.

    An episode that was cut keeps the critic's value of the state in which it was cut. Where most episodes fail, that
    is more than failing earns, so a policy could learn to talk until it is cut.
    """
    return replace(group, trajectories=[_ended(trajectory) for trajectory in group.trajectories])


def _ended(trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, truncated=False, terminated=True) if trajectory.stop in _CUT else trajectory


@dataclass(kw_only=True)
class RecordedScale(ClipBiasScale):
    """Clip-bias that remembers its factors, so that a control can replay them.

    scale = 1 / max(1, ‖C‖/c0)      (safe)
    """

    _factors: list[float] = field(default_factory=list[float], init=False, repr=False)

    def finish(self, reduce: Reduce = alone) -> Scale:
        """The scale of this step, which is also kept."""
        scale = super().finish(reduce)
        self._factors.append(scale.value)
        return scale

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps; `factors` is what the control reads."""
        return {**super().state_dict(), "factors": list(self._factors)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
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

    def observe(
        self,
        *,
        bias: Tensor | None,
        coefficient_T: Tensor | None,
        logprob_T: Tensor,
        collision_T: Tensor | None = None,
        parameters: Sequence[Tensor] = (),
    ) -> None:
        """Nothing that happens changes the list."""

    def finish(self, reduce: Reduce = alone) -> Scale:
        """The next factor."""
        value = float(self.factors[self._place % len(self.factors)])
        self._place += 1
        return Scale(value=value, norm=0.0, threshold=1.0, apply=self.apply)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the place in the list."""
        return {"place": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        self._place = int(state["place"])
