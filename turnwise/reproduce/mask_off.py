"""Controls of LTC: a policy that learns from every token, and one that earns nothing."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from turnwise.batch import TokenBatch
from turnwise.types import Group, Trajectory, Turn


def all_tokens(group: Group) -> Group:
    """A filter that takes the mask off: what the environment and other agents wrote counts as the policy's own."""
    return replace(group, trajectories=[_all_own(each) for each in group.trajectories])


def nothing_earned(batch: TokenBatch) -> Tensor:
    """A reward part after which only losses on text are left: with a critic that begins at zero there is no credit."""
    return torch.zeros_like(batch.reward_T)


def _all_own(trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, turns=[_own(turn, first=index == 0) for index, turn in enumerate(trajectory.turns)])


def _own(turn: Turn, *, first: bool) -> Turn:
    """The turn with its prompt as a part of what was sampled; nothing comes before a sequence's first token."""
    kept = 1 if first or turn.restarts else 0
    said = [*turn.prompt_ids[kept:], *turn.sampled_ids]
    return replace(turn, prompt_ids=turn.prompt_ids[:kept], sampled_ids=said, logprobs=None, heard=(), streams={})
