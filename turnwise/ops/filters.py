"""Which trajectories and groups to drop before denominators are counted."""

import math
from collections.abc import Sequence
from dataclasses import replace

from turnwise.types import Group, StopReason, Trajectory

_EPSILON = 2.0**-23
"""The distance from 1 to the next single-precision number."""


def errored(group: Group) -> Group:
    """Leave out trajectories that ended by a fault of the environment or a time-out."""
    return _keep(group, [t for t in group.trajectories if not t.stop.is_failure])


def overlong(group: Group) -> Group:
    """Leave out trajectories that ran out of tokens or context: their reward says little (DAPO, 2503.14476)."""
    cut = (StopReason.MAX_TOKENS, StopReason.CONTEXT_FULL)
    return _keep(group, [t for t in group.trajectories if t.stop not in cut])


def zero_variance(group: Group) -> Group:
    """Leave out groups in which all returns are equal: they carry no gradient (DAPO's dynamic sampling)."""
    return _keep(group, []) if equal_returns(group.trajectories) else group


def equal_returns(trajectories: Sequence[Trajectory]) -> bool:
    """Whether returns differ by no more than the rounding of their rewards.

        max R − min R ≤ ε · max_i Σ_k |r_k|

    Batches keep rewards in single precision: each is off by at most ε/2 of itself, and so are the two returns together
    by at most ε of the larger sum. Returns that are not finite equal nothing, so that `pack` can name them.
    """
    returns = [trajectory.reward for trajectory in trajectories]
    if not all(map(math.isfinite, returns)):
        return False
    size = max((sum(abs(turn.reward) for turn in t.turns) for t in trajectories), default=0.0)
    return max(returns, default=0.0) - min(returns, default=0.0) <= _EPSILON * size


def _keep(group: Group, trajectories: list[Trajectory]) -> Group:
    return replace(group, trajectories=trajectories)


FILTERS = {"errored": errored, "overlong": overlong, "zero-variance": zero_variance}
