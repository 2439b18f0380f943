"""The policy before the first step, and how far training has moved away from it: `eval/kl`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from statistics import fmean

from turnwise.evaluate.statistics import mean_interval
from turnwise.learn.distance import distances
from turnwise.policy.text import Reference
from turnwise.runs.checkpoints import Checkpoints, policy_folder
from turnwise.train.trainee import Trainee
from turnwise.types import Group


class FirstPolicy:
    """What a policy was before the first step of its stage: `FirstPolicy(trainee, checkpoints).distance(groups)`."""

    def __init__(self, trainee: Trainee, checkpoints: Checkpoints) -> None:
        self._trainee, self._checkpoints = trainee, checkpoints

    def distance(self, groups: Sequence[Group]) -> dict[str, float]:
        """The KL of the policy to its first self on held-out episodes, per episode, with its interval over tasks."""
        found = distances(self._trainee.learner, groups, self.reference)
        tasks = [[found[each.id] for each in group.trajectories if each.id in found] for group in groups]
        kl = [fmean(exact for exact, _ in task) for task in tasks if task]
        if not kl:
            return {}
        metrics = {
            "eval/kl": fmean(kl),
            "eval/log_ratio": fmean(fmean(ratio for _, ratio in task) for task in tasks if task),
        }
        if len(kl) > 1 and all(map(math.isfinite, kl)):
            low, high = mean_interval(kl)
            metrics |= {"eval/kl_low": max(low, 0.0), "eval/kl_high": high}
        return metrics

    @cached_property
    def reference(self) -> Reference:
        """Its weights, loaded once."""
        trainee, policy = self._trainee, self._trainee.policy
        if trainee.first is not None:
            return trainee.first
        # The reference of the row may be renewed, so this one is always a model in memory, loaded once.
        if self._checkpoints.find(0) is None:
            raise ValueError(
                "eval.measures=kl and held-out pairs need the checkpoint of step 0, but the run does not have it any "
                "more; leave them out, or start a new run"
            )
        folder = policy_folder(self._checkpoints.at(0), trainee.name)
        reference = Reference.of_folder(folder, like=policy)
        if trainee.learner.in_step.size > 1:
            reference.shard(policy.device)
        return reference
