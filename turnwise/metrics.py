"""Every number that a run writes, in words: `metrics.jsonl` and `evals.jsonl` hold these names and no others."""

from __future__ import annotations

import math
from collections.abc import Mapping

from turnwise.ops.diagnostics import TURN_METRICS
from turnwise.ops.regularizers import REGULARIZERS

Row = Mapping[str, float | None]

METRICS = {
    "rollout/episodes": "episodes played in this step",
    "rollout/tasks": "tasks that they were tries at",
    "rollout/faults": "share of them that failed, by errors and time-outs; they enter no batch",
    "rollout/success": "share of the sound episodes that reached their goal",
    "rollout/reward": "mean reward of an episode",
    "rollout/turns": "mean turns of an episode",
    "rollout/tokens": "mean sampled tokens of an episode",
    "rollout/valid": "share of turns that the environment understood and allowed; one that was cut is not valid",
    "rollout/cut": "share of episodes that a limit ended: turns, tokens or context",
    "rollout/zero_variance": "share of groups whose tries all earned the same",
    "rollout/repetition": "share of runs of four sampled tokens that occurred before in their turn",
    "rollout/lag_mean": "versions between the policy that sampled a turn and the one that learns from it",
    "rollout/lag_max": "the largest such lag",
    "loss/policy": "the surrogate's part of the loss",
    "loss/value": "the critic's part of the loss",
    **{f"loss/{kind}_term": f"the {kind} regulariser's part of the loss" for kind in REGULARIZERS},
    **{name.replace("turn/", "loss/"): f"over all turns: {text}" for name, text in TURN_METRICS.items()},
    "loss/tokens": "sampled tokens in this step's updates",
    "train/updates": "optimiser steps",
    "train/skipped": "optimiser steps that the guard left out",
    "train/gradient_norm": "norm of the actor's gradient before it is clipped, mean over the updates",
    "train/gradient_norm_max": "the largest of them",
    "train/critic_gradient_norm": "the same of the critic, mean over the updates",
    "train/learning_rate": "the actor's learning rate, before the scale",
    "train/scale": "share of the optimiser's step that was taken, mean over the updates",
    "train/scale_min": "the smallest of them",
    "train/clip_bias": "norm of the clipping bias that the scale was made from, mean over the updates",
    "train/drift": "distance from the sampler that a drift scale was made from, mean over the updates",
    "train/explained_variance": "1 − Var(return − value) / Var(return) where the critic is trained, before the updates",
    "train/sequences": "sequences in the batch",
    "train/tokens": "tokens in the batch, those of environments included",
    "time/step": "seconds of the whole step",
    "time/rollout": "seconds until its episodes were there",
    "time/score": "seconds of filtering, packing, scoring and credit",
    "time/update": "seconds of the optimiser steps",
    "time/model": "seconds in the model: sampling, scoring and updates",
    "time/env": "seconds of environments that the engine could not use",
    "time/tokens_per_second": "tokens trained and sampled, per second of the step",
    "time/evaluate": "seconds of an evaluation",
    "eval/episodes": "held-out episodes played",
    "eval/tasks": "different held-out tasks, where the environment has a limited number of them",
    "eval/faults": "share of them that failed, by errors and time-outs",
    "eval/success": "share of the sound ones that reached their goal",
    "eval/success_low": "lower end of its 95% interval, over tasks",
    "eval/success_high": "upper end",
    "eval/reward": "mean reward",
    "eval/reward_low": "lower end of its 95% interval, over tasks",
    "eval/reward_high": "upper end",
    "eval/turns": "mean turns",
    "eval/tokens": "mean sampled tokens",
    "eval/valid": "share of turns that the environment understood and allowed; one that was cut is not valid",
    "eval/pass@k": "chance that one of k tries succeeds, for k = 1, 2, 4 … up to eval.tries",
}
"""Name and meaning. A row leaves out what it has no data for: no critic, no reference, no groups."""


def number(row: Row, name: str) -> float | None:
    """A metric of a row; None where the row has none or it is not finite."""
    value = row.get(name)
    return value if value is not None and math.isfinite(value) else None
