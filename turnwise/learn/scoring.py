"""What is known of a batch before the first optimiser step: exactly the scores that the row needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from turnwise.algorithm import Algorithm, Need
from turnwise.algorithm.axes import ROUTING
from turnwise.algorithm.parts import bind
from turnwise.batch import Scores, TokenBatch
from turnwise.expert_routing import ExpertRecorder, ExpertReplay

if TYPE_CHECKING:
    from turnwise.learn.learner import Learner


@torch.no_grad()
def scored(learner: Learner, batch: TokenBatch) -> TokenBatch:
    """The batch with the log-probs of the old policy and the reference, and with values."""
    if _asks_for_old(learner):
        observes = not learner.needs.isdisjoint({Need.OLD_ROUTING, Need.VOCABULARY_MEAN, Need.OLD_KL})
        batch = _observed(learner, batch) if observes else batch.with_(old_T=learner.score(batch, learner.sampler))
    if learner.reference is not None:
        batch = batch.with_(ref_T=learner.score(batch, learner.reference))
    return batch if learner.critic is None else _valued(learner, batch)


def replay(row: Algorithm, part: TokenBatch) -> ExpertReplay | None:
    """The experts that a pass of the policy must use, if the row says so."""
    experts_TE = bind(ROUTING, row.routing)(part)
    return None if experts_TE is None else ExpertReplay(experts_TE)


def _observed(learner: Learner, batch: TokenBatch) -> TokenBatch:
    """The log-probs of the old policy, and what else the row asks of it: experts, vocabulary mean, exact KL."""
    experts, means, distances = list[Tensor](), list[Tensor](), list[Tensor]()
    records, uniform = (need in learner.needs for need in (Need.OLD_ROUTING, Need.VOCABULARY_MEAN))
    near: Any = learner.reference if Need.OLD_KL in learner.needs else None

    def score(part: TokenBatch) -> Scores:
        routing = ExpertRecorder() if records else replay(learner.row, part)
        scores = learner.policy.score(
            part, temperature=learner.temperature, uniform=uniform, reference=near, routing=routing
        )
        if isinstance(routing, ExpertRecorder):
            experts.append(routing.experts())
        if scores.uniform_T is not None:
            means.append(scores.uniform_T)
        if scores.reference_kl_T is not None:
            distances.append(scores.reference_kl_T)
        return scores

    batch = batch.with_(old_T=learner.in_parts(batch, score))
    if records and batch.tokens:
        batch = batch.with_(extra_T={**batch.extra_T, "old_routing": torch.cat(experts)[: batch.tokens]})
    none_T = batch.reward_T.new_zeros(0)
    if uniform:
        batch = batch.with_(old_uniform_T=torch.cat([*means, none_T])[: batch.tokens])  # fillers come last
    if near is not None:
        batch = batch.with_(old_kl_T=torch.cat([*distances, none_T])[: batch.tokens])
    return batch


def _asks_for_old(learner: Learner) -> bool:
    """With one update per rollout the old policy is the policy itself, so only credit may need its scores."""
    credit_asks = Need.OLD in learner.row.facts("reward", "advantage", "normalizer", "mismatch")
    return credit_asks or learner.row.updates_per_rollout > 1 or learner.sampler is not None


def _valued(learner: Learner, batch: TokenBatch) -> TokenBatch:
    critic = learner.critic
    assert critic is not None
    parts, fillers = learner.passes(batch)
    assessed = [critic.assess(part, learner.policy, replay(learner.row, part)) for part in parts]
    for filler in fillers:
        critic.assess(filler, learner.policy)
    if not parts:
        return batch.with_(value_T=torch.zeros_like(batch.reward_T), bootstrap_S=batch.reward_T.new_zeros(0))
    return batch.with_(
        value_T=torch.cat([_assigned(part.value_T) for part in assessed]),
        bootstrap_S=torch.cat([_assigned(part.bootstrap_S) for part in assessed]),
    )


def _assigned(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
