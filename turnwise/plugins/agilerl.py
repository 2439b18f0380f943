"""AgileRL: a `GRPO` agent whose advantages and loss are a row's.

    class Agent(TurnwiseGRPO):
        algorithm = "so-grpo"                   # a preset or a YAML file; by default TURNWISE_ALGORITHM

AgileRL generates, scores and steps. Its own options of advantages and loss (`clip_coef`, `adv_norm`, `loss_type`,
off-policy masks, …) are not read. It overrides methods that AgileRL calls private, so it is made for agilerl 2.58.
"""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from agilerl.algorithms.grpo import GRPO  # pyright: ignore[reportMissingImports]
from agilerl.distributed import get_world_size  # pyright: ignore[reportMissingImports]
from torch import Tensor
from torch.optim import Optimizer

from turnwise.algorithm import Algorithm, Need
from turnwise.plugins.hosts import ROW_COUNTS, HostTrainer, chosen_algorithm
from turnwise.plugins.padded import Padded, host_counts, padded_credit, padded_loss
from turnwise.plugins.scaled_steps import ScaledSteps, over_processes

_STEPS: WeakKeyDictionary[Optimizer, ScaledSteps] = WeakKeyDictionary()
"""By optimiser, not by agent: AgileRL clones agents and makes their optimisers again."""


class TurnwiseGRPO(GRPO):
    """AgileRL's GRPO with a row's credit and loss."""

    algorithm: ClassVar[str | Algorithm | None] = None

    def _setup_objective(self, *_: Any) -> None:
        self.row = chosen_algorithm(self.algorithm)
        _host(self).require(self.row)
        if self.loss_norm != "accumulation_window":
            raise ValueError(f"loss_norm={self.loss_norm} would weigh tokens a second time; use accumulation_window")
        if self.beta != 0 and not self.row.needs_reference:
            raise ValueError(f"beta={self.beta} has no effect: {self.row.name!r} has no KL; set beta to 0")
        # At turn level AgileRL hands turn ids to the loss and leaves its fused kernel out.
        super()._setup_objective("grpo", "turn", False)

    def _calculate_advantages(
        self, rewards: Tensor, token_ids: Tensor, action_masks: Tensor, turn_ids: Tensor | None
    ) -> tuple[Tensor, np.ndarray]:
        rows = len(action_masks)
        self._assert_batch_divisible_by_group(rows)
        self._learnt_turn_ids = turn_ids
        padded = Padded(
            mask=action_masks.bool(),
            turn_ids=turn_ids,
            rewards=_token_rewards(rewards, turn_ids, rows),
            groups=[row // self.group_size for row in range(rows)],
        )
        advantages, _ = padded_credit(self.row, padded, reduce=over_processes)
        return advantages, np.arange(rows)

    def _record_global_window_action_tokens(self, action_masks: Tensor, window_idxs: np.ndarray) -> None:
        super()._record_global_window_action_tokens(action_masks, window_idxs)
        ids = self._learnt_turn_ids
        window = Padded(mask=action_masks[window_idxs].bool(), turn_ids=None if ids is None else ids[window_idxs])
        known = torch.tensor([window.mask.sum(), window.pack().turns, len(window_idxs)], device=action_masks.device)
        tokens, turns, rows = over_processes(known).tolist()
        self._window_counts = host_counts(tokens=tokens, turns=turns, rows=rows)

    @staticmethod
    def _check_segments_supported(importance_sampling_level: str) -> None:
        raise ValueError(
            "episode_segments cuts an episode into several rows; a row's loss needs it whole: leave it out"
        )

    def _resolve_standard_loss_fn(self) -> Any:
        return self._turnwise_loss

    def _turnwise_loss(
        self,
        mask: Tensor,
        log_probs: Tensor,
        old_log_probs: Tensor,
        reference_log_probs: Tensor,
        advantages: Tensor,
        turn_ids: Tensor | None = None,
        sampling_log_probs: Tensor | None = None,
        sampled_rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        padded = Padded(
            mask=mask.bool(),
            turn_ids=turn_ids,
            old=old_log_probs,
            sampler=sampling_log_probs,
            reference=reference_log_probs if self.row.needs_reference else None,
            advantages=advantages,
        )
        loss, scores = padded_loss(self.row, padded, log_probs, counts=self._window_counts)
        if log_probs.requires_grad:
            self._scaled_steps().observe(loss, scores)
        readings = loss.table.totals()
        kl, clipped = readings.get("loss/reference_kl", 0.0), readings["loss/clip_fraction"]
        # AgileRL divides by the micro-batches of a step, and averages over processes.
        total = loss.total * self._resolve_loss_window()[0] * get_world_size()
        return total, total.new_tensor(kl), total.new_tensor(clipped)

    def _scaled_steps(self) -> ScaledSteps:
        optimizer = self.optimizer.optimizer
        if optimizer not in _STEPS:
            _STEPS[optimizer] = ScaledSteps(self.row, reduce=over_processes, optimizer=optimizer)
        return _STEPS[optimizer]


def _host(agent: GRPO) -> HostTrainer:
    """What AgileRL gives to this agent."""
    sampled = agent.vllm_config is not None and agent.old_logprobs_source == "trainer"
    scored = {Need.REFERENCE: agent.beta != 0, Need.SAMPLER: sampled}
    return HostTrainer(
        name="AgileRL",
        loss=ROW_COUNTS
        | {Need.OLD, Need.TOKEN_COUNT, Need.TURN_COUNT}
        | {need for need, given in scored.items() if given},
        instead={
            Need.REFERENCE: "set beta to any number but 0; then AgileRL scores the reference",
            Need.SAMPLER: "use vLLM with old_logprobs_source='trainer'",
            Need.ENTROPY: "set regularizers to []",
        },
    )


def _token_rewards(rewards: Tensor, turn_ids: Tensor | None, rows: int) -> Tensor:
    """Rewards of whole rows as they are; a turn's reward on its last token, or on the row's last if it has none."""
    rewards = rewards.reshape(rows, -1)
    if turn_ids is None or rewards.shape[1] == 1:
        return rewards.sum(1)
    columns = torch.arange(turn_ids.shape[1], device=turn_ids.device)
    placed = torch.zeros(turn_ids.shape, device=turn_ids.device)
    for turn, reward in enumerate(rewards.to(placed).unbind(1)):
        last = torch.where(turn_ids == turn, columns, -1).max(1).values
        placed[torch.arange(rows), last] += reward
    return placed
