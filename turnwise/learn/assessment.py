"""What a policy makes of pairs that it does not learn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from turnwise.algorithm import Need
from turnwise.batch import TokenBatch
from turnwise.learn.batches import passes, share_of
from turnwise.learn.reporting import summed
from turnwise.learn.selection import has_turns_of
from turnwise.ops.filters import errored, ties
from turnwise.ops.pairs import pair_measures
from turnwise.rollout.packing import pack
from turnwise.types import Group

if TYPE_CHECKING:
    from turnwise.learn.learner import Learner


@torch.no_grad()
def assess_pairs(learner: Learner, groups: Sequence[Group], against: Any) -> dict[str, float]:
    """The measures of `ops/pairs.py`, each group counted once; empty if there is nothing to compare.

    Every rank gets all groups and returns the same numbers.
    """
    pairs = [ties(errored(group)) for group in groups]
    pairs = [group for group in pairs if has_turns_of(learner.name, group)]
    if not pairs:
        return {}
    batch = share_of(pack(pairs, policy=learner.name), learner.ranks).to(learner.policy.device)
    batch = batch.with_(unit_S=batch.group_S)
    parts, fillers = passes(batch, tokens=learner.settings.micro_tokens, in_step=learner.in_step)
    found = [_measures(learner, part, against) for part in parts]
    for filler in fillers:
        _measures(learner, filler.to(learner.policy.device), against)
    total = summed(learner.ranks.gather(summed(found)))
    units = sum(learner.ranks.gather(batch.unit_rows[1]))
    return {name: value / units for name, value in total.items()}


@torch.no_grad()
def text_losses(learner: Learner, groups: Sequence[Group]) -> dict[str, tuple[float, int]]:
    """By demonstration: minus the log-prob of what is learned from it, summed, and how many tokens that is.

    Every rank gets all groups and returns all numbers.
    """
    batch = share_of(pack(groups, policy=learner.name), learner.ranks).to(learner.policy.device)
    logprob_T = learner.score(batch)
    trajectory_T = batch.trajectory_S[batch.sequence_T]
    sums, counts = (
        torch.zeros(len(batch.trajectory_names), dtype=torch.float64, device=batch.ids_T.device)
        .index_add(0, trajectory_T, each_T.double())
        .tolist()
        for each_T in (logprob_T * batch.sampled_T, batch.sampled_T)
    )
    mine = {batch.trajectory_names[row]: (-sums[row], int(counts[row])) for row in set(batch.trajectory_S.tolist())}
    return {name: found for rank in learner.ranks.gather(mine) for name, found in rank.items()}


def _measures(learner: Learner, part: TokenBatch, against: Any) -> dict[str, float]:
    """Their sums over the units of one micro-batch, with the exact KL where the policy has it."""
    exact = Need.KL_FROM_REFERENCE in learner.policy.provides
    reference_T = against.score(part, temperature=learner.temperature).logprob_T
    scores = learner.policy.score(
        part, temperature=learner.temperature, reverse_kl=exact, reference=against if exact else None
    )
    measures = pair_measures(part.with_(ref_T=reference_T), scores, against="reference")
    return {name: float(values_U.double().sum()) for name, values_U in measures.items()}
