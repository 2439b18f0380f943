"""Which trajectories and groups to drop before denominators are counted."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from turnwise.ops.facts import Trait, declares
from turnwise.ops.parameters import Count
from turnwise.types import Group, StopReason, Trajectory

EPSILON = 2.0**-23
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


def ties(group: Group) -> Group:
    """Leave out groups without a better and a worse member: there is nothing to compare."""
    return group if _differ(group.trajectories) else _keep(group, [])


@declares(Trait.CHOOSES)
def extremes(group: Group, *, wins: Literal["group", "pair"] = "group") -> Group:
    """Keep the best and the worst member as a pair; leave out groups in which all are equally good.

    `wins` says whom their win probabilities are about: all samples of the group, as the judge gave them, or the other
    of the pair. SPPO (2405.00675) pairs its samples so, and has both targets.
    """
    if not _differ(group.trajectories):
        return _keep(group, [])
    best, worst = max(group.trajectories, key=merit), min(group.trajectories, key=merit)
    if wins == "pair":
        best, worst = _against(best, worst), _against(worst, best)
    return _keep(group, [best, worst])


@declares(Trait.CHOOSES)
def best(group: Group, *, n: Count = 1) -> Group:
    """Keep the best `n` members; of equally good ones the first (SuperHF, 2310.16763)."""
    return _keep(group, sorted(group.trajectories, key=merit, reverse=True)[:n])


def merit(trajectory: Trajectory) -> float:
    """How good a trajectory was: the judge's win probability if there is one, else its return."""
    probability = win_probability(trajectory)
    return trajectory.reward if probability is None else probability


def win_probability(trajectory: Trajectory) -> float | None:
    """The judge's probability that this answer beats the others; None if there was no judge."""
    judged = [turn.streams["wins"] for turn in trajectory.turns if "wins" in turn.streams]
    return float(judged[-1][0]) if judged else None


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
    return max(returns, default=0.0) - min(returns, default=0.0) <= EPSILON * size


def _differ(trajectories: Sequence[Trajectory]) -> bool:
    """Whether one member is better than another by more than rounding."""
    merits = [merit(trajectory) for trajectory in trajectories]
    if len(merits) < 2:
        return False
    high, low = max(merits), min(merits)
    return not high - low <= EPSILON * (abs(high) + abs(low))  # true also of NaN, so that `pack` can name it


def _against(trajectory: Trajectory, other: Trajectory) -> Trajectory:
    """The trajectory with its win probability against another member of its group."""
    rivals, beats = list(trajectory.info.get("rivals", ())), trajectory.info.get("beats", ())
    if other.id not in rivals:
        raise ValueError(
            f"filters.extremes with wins=pair needs the judge's probability that {trajectory.id!r} beats {other.id!r}; "
            "set judge, or set wins to group"
        )
    judged = {"wins": [beats[rivals.index(other.id)]]}
    turns = [
        replace(turn, streams=dict(turn.streams) | judged) if "wins" in turn.streams else turn
        for turn in trajectory.turns
    ]
    return replace(trajectory, turns=turns)


def _keep(group: Group, trajectories: list[Trajectory]) -> Group:
    return replace(group, trajectories=trajectories)


FILTERS = {
    "errored": errored,
    "overlong": overlong,
    "zero-variance": zero_variance,
    "ties": ties,
    "extremes": extremes,
    "best": best,
}
