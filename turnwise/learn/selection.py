"""Which groups a learner learns from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from turnwise.algorithm import Algorithm, apply_filters
from turnwise.rollout.scheduler import by_task
from turnwise.types import CUTS, Group, Trajectory


def learnt_from(row: Algorithm, groups: Sequence[Group], policy: str) -> list[Group]:
    """What the row's filters leave, as the row ends and compares it, where the policy has spoken."""
    kept = apply_filters(row, by_task(groups) if row.compares == "task" else groups)
    if row.cut == "lost":
        kept = [
            replace(group, trajectories=[_without_bootstrap(each) for each in group.trajectories]) for group in kept
        ]
    return [group for group in kept if has_turns_of(policy, group)]


def has_turns_of(policy: str, group: Group) -> bool:
    """Whether the policy sampled anything in the group."""
    turns = [turn for trajectory in group.trajectories for turn in trajectory.turns]
    return any(turn.sampled_ids and turn.policy == policy for turn in turns)


def _without_bootstrap(trajectory: Trajectory) -> Trajectory:
    """Nothing follows if one of our limits ended the episode; truncation by the environment is unchanged."""
    return replace(trajectory, bootstrap=0.0) if trajectory.stop in CUTS else trajectory
