"""How far a policy has moved from another one, on episodes that it played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from turnwise.batch import Scores, TokenBatch
from turnwise.learn.batches import passes, share_of
from turnwise.learn.learner import Learner
from turnwise.policy.text import Reference
from turnwise.rollout.packing import pack
from turnwise.types import Group


@torch.no_grad()
def distances(learner: Learner, groups: Sequence[Group], other: Reference) -> dict[str, tuple[float, float]]:
    """By episode: the exact KL to the other policy summed over its tokens, and the log-ratio of what was sampled.

    Both estimate the KL of whole episodes. The first has less noise: it averages over the vocabulary at each token.
    Every rank gets all groups and returns all numbers.
    """
    spoken = [
        replace(group, trajectories=[each for each in group.trajectories if not each.stop.is_failure])
        for group in groups
    ]
    spoken = [group for group in spoken if any(turn.sampled_ids for each in group.trajectories for turn in each.turns)]
    if not spoken:
        return {}
    batch = share_of(pack(spoken, policy=learner.name), learner.ranks).to(learner.policy.device)
    parts, fillers = passes(batch, tokens=learner.settings.micro_tokens, in_step=learner.in_step)
    found: dict[str, tuple[float, float]] = {}
    for part in parts:
        found |= _by_episode(part, *_measure(learner, part, other))
    for filler in fillers:
        _measure(learner, filler.to(learner.policy.device), other)
    return {name: numbers for rank in learner.ranks.gather(found) for name, numbers in rank.items()}


def _measure(learner: Learner, part: TokenBatch, other: Reference) -> tuple[Tensor, Tensor]:
    scores: Scores = learner.policy.score(part, temperature=learner.temperature, reference=other)
    assert scores.reference_kl_T is not None
    return scores.reference_kl_T, scores.logprob_T - other.score(part, temperature=learner.temperature).logprob_T


def _by_episode(part: TokenBatch, *numbers_T: Tensor) -> dict[str, tuple[float, float]]:
    trajectory_T = part.trajectory_S[part.sequence_T]
    sums = [
        torch.zeros(len(part.trajectory_names), dtype=torch.float64, device=part.ids_T.device)
        .index_add(0, trajectory_T, each_T.double())
        .tolist()
        for each_T in numbers_T
    ]
    return {part.trajectory_names[row]: (sums[0][row], sums[1][row]) for row in set(part.trajectory_S.tolist())}
