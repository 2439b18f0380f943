"""What is known of a batch before the first optimiser step: exactly the scores that the row needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        records = Need.OLD_ROUTING in learner.needs
        batch = _recorded(learner, batch) if records else batch.with_(old_T=learner.score(batch, learner.sampler))
    if learner.reference is not None:
        batch = batch.with_(ref_T=learner.score(batch, learner.reference))
    return batch if learner.critic is None else _valued(learner, batch)


def replay(row: Algorithm, part: TokenBatch) -> ExpertReplay | None:
    """The experts that a pass of the policy must use, if the row says so."""
    experts_TE = bind(ROUTING, row.routing)(part)
    return None if experts_TE is None else ExpertReplay(experts_TE)


def _recorded(learner: Learner, batch: TokenBatch) -> TokenBatch:
    """The log-probs of the old policy, and the experts that it chose."""
    found: list[Tensor] = []

    def score(part: TokenBatch) -> Scores:
        recording = ExpertRecorder()
        scores = learner.policy.score(part, temperature=learner.temperature, routing=recording)
        found.append(recording.experts())
        return scores

    old_T = learner.in_parts(batch, score)
    chosen = {"old_routing": torch.cat(found)[: batch.tokens]} if batch.tokens else {}  # fillers come last
    return batch.with_(old_T=old_T, extra_T={**batch.extra_T, **chosen})


def _asks_for_old(learner: Learner) -> bool:
    """With one update per rollout the old policy is the policy itself, so only credit may need its scores."""
    credit_asks = Need.OLD in learner.row.facts("reward", "advantage", "normalizer", "mismatch")
    return credit_asks or learner.row.updates_per_rollout > 1 or learner.sampler is not None


def _valued(learner: Learner, batch: TokenBatch) -> TokenBatch:
    critic = learner.critic
    assert critic is not None
    parts, fillers = learner.passes(batch)
    assessed = [critic.assess(part, learner.policy) for part in parts]
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
