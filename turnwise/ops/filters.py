"""Which trajectories and groups are left out, before any denominator is counted."""

from dataclasses import replace

from turnwise.types import Group, StopReason, Trajectory


def errored(group: Group) -> Group:
    """Leave out trajectories that ended by a fault of the environment or a time-out."""
    return _keep(group, [t for t in group.trajectories if not t.stop.is_failure])


def overlong(group: Group) -> Group:
    """Leave out trajectories that ran out of tokens or context: their reward says little (DAPO, 2503.14476)."""
    cut = (StopReason.MAX_TOKENS, StopReason.CONTEXT_FULL)
    return _keep(group, [t for t in group.trajectories if t.stop not in cut])


def zero_variance(group: Group) -> Group:
    """Leave out groups in which all returns are equal: they carry no gradient (DAPO's dynamic sampling)."""
    return group if len({t.reward for t in group.trajectories}) > 1 else _keep(group, [])


def _keep(group: Group, trajectories: list[Trajectory]) -> Group:
    return replace(group, trajectories=trajectories)


FILTERS = {"errored": errored, "overlong": overlong, "zero-variance": zero_variance}
