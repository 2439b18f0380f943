"""verl: the policy loss and the advantage estimator `turnwise`. verl loads this module by its entry point.

    export TURNWISE_ALGORITHM=st-ppo            # a preset, or a YAML file with a row
    python -m verl.trainer.main_ppo actor_rollout_ref.actor.policy_loss.loss_mode=turnwise algorithm.adv_estimator=gae

Rows without a critic take `algorithm.adv_estimator=turnwise`. Rows with one take verl's `gae`: verl does not hand its
values to other estimators.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import (  # pyright: ignore[reportMissingImports]
    register_adv_est,
    register_policy_loss,
)

from turnwise.algorithm import Algorithm, Need
from turnwise.ops.weights import Counts
from turnwise.plugins.hosts import ROW_COUNTS, VARIABLE, HostTrainer, chosen_algorithm
from turnwise.plugins.padded import Padded, host_counts, metrics_of, padded_credit, padded_loss
from turnwise.plugins.scaled_steps import ScaledSteps, over_processes

_KL = "set regularizers to [] and actor.use_kl_loss in verl, or reward to [] and algorithm.use_kl_in_reward"
_VALUES = "set algorithm.adv_estimator=gae, and verl's own critic gives the advantages"
_SAMPLER = "set algorithm.rollout_correction in verl, whose weights the loss takes"
HOST = HostTrainer(
    name="verl",
    loss=ROW_COUNTS | {Need.OLD, Need.TOKEN_COUNT},
    critic=True,
    instead={
        Need.REFERENCE: _KL,
        Need.ENTROPY: "set regularizers to [] and actor.entropy_coeff in verl",
        Need.TOKEN_VALUES: _VALUES,
        Need.TURN_VALUES: _VALUES,
        Need.SAMPLER: _SAMPLER,
    },
)


class _Actor:
    """The row as the actor of this process runs it."""

    def __init__(self, row: Algorithm) -> None:
        HOST.require_loss(row)
        self.row, self.copies = row, 1.0
        self.steps = ScaledSteps(row, reduce=lambda values: over_processes(values) / self.copies)

    def loss(self, padded: Padded, log_probs: Tensor, info: dict[str, Any]) -> tuple[Tensor, dict[str, float]]:
        parallel = info.get("dp_size") or 1
        # Processes that share a sequence all see the same micro-batch, so a sum over all of them counts it so often.
        self.copies = torch.distributed.get_world_size() / parallel if torch.distributed.is_initialized() else 1.0
        loss, scores = padded_loss(self.row, padded, log_probs, counts=_counts(info))
        if log_probs.requires_grad:
            self.steps.observe(loss, scores)
        # verl averages gradients over data-parallel ranks; the counts already cover all of them.
        return loss.total * parallel, metrics_of(loss) | self.steps.metrics()


@cache
def _actor(name: str | None) -> _Actor:
    return _Actor(chosen_algorithm(name))


@cache
def _credited(name: str | None) -> Algorithm:
    row = chosen_algorithm(name)
    HOST.require_credit(row)
    return row


@register_policy_loss("turnwise")
def policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The row's policy loss. Its own `weights` aggregate; `loss_agg_mode` is left to verl's entropy and KL terms."""
    padded = Padded(mask=response_mask, old=old_log_prob, advantages=advantages, weights=rollout_is_weights)
    return _actor(os.environ.get(VARIABLE)).loss(padded, log_prob, config.global_batch_info)


@register_adv_est("turnwise")
def advantages(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    config: Any = None,
    index: Sequence[Any] | None = None,
    reward_baselines: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The row's advantages over the whole batch, with verl's `uid` as the group."""
    groups = None if index is None else list(index)
    return padded_credit(
        _credited(os.environ.get(VARIABLE)), Padded(mask=response_mask, rewards=token_level_rewards, groups=groups)
    )


def _counts(info: dict[str, Any]) -> Counts | None:
    tokens, rows = info.get("batch_num_tokens"), info.get("global_batch_size")
    if tokens is None or rows is None:
        if (info.get("dp_size") or 1) > 1:
            raise ValueError("verl gave no batch_num_tokens and global_batch_size; they are needed with dp_size > 1")
        return None
    return host_counts(tokens=float(tokens), rows=float(rows))


def _refuse_at_start() -> None:
    """End the process if the chosen row's loss cannot run. verl hides every other error of a plug-in."""
    if VARIABLE not in os.environ:
        return
    try:
        HOST.require_loss(chosen_algorithm())
    except ValueError as error:
        raise SystemExit(f"{VARIABLE}: {error}") from None


_refuse_at_start()
