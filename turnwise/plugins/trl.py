"""TRL: a `GRPOTrainer` whose advantages and loss are a row's.

    trainer = TurnwiseTrainer(model, reward_funcs=reward, args=GRPOConfig(...), train_dataset=data, algorithm="so-grpo")

TRL generates, scores and steps. Its own options of advantages and loss (`loss_type`, `epsilon`, `scale_rewards`, …) are
not read. It overrides methods that TRL calls private, so it is made for trl 1.16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from trl.trainer.grpo_config import GRPOConfig  # pyright: ignore[reportMissingImports]
from trl.trainer.grpo_trainer import GRPOTrainer  # pyright: ignore[reportMissingImports]

from turnwise.algorithm import Algorithm, Need
from turnwise.ops.weights import Counts
from turnwise.plugins.hosts import ROW_COUNTS, HostTrainer, chosen_algorithm
from turnwise.plugins.padded import Padded, host_counts, metrics_of, padded_credit, padded_loss
from turnwise.plugins.scaled_steps import ScaledSteps

_IMAGES = (
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles"),
    *("image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)


def host(args: GRPOConfig) -> HostTrainer:
    """What TRL gives with these settings."""
    scored = {Need.REFERENCE: args.beta != 0, Need.SAMPLER: args.use_vllm}
    return HostTrainer(
        name="TRL",
        loss=ROW_COUNTS
        | {Need.OLD, Need.ENTROPY, Need.TOKEN_COUNT, Need.TURN_COUNT}
        | {need for need in scored if scored[need]},
        instead={
            Need.REFERENCE: "set GRPOConfig's beta to any number but 0; then TRL scores the reference",
            Need.SAMPLER: "set use_vllm in GRPOConfig: TRL records the sampler's log-probs only then",
        },
    )


class TurnwiseTrainer(GRPOTrainer):
    """TRL's trainer with a row's credit and loss; `algorithm` is a preset, a YAML file or a row."""

    def __init__(self, *args: Any, algorithm: str | Algorithm | None = None, **kwargs: Any) -> None:
        self.row = chosen_algorithm(algorithm)
        super().__init__(*args, **kwargs)
        host(self.args).require(self.row)
        if self.beta != 0 and not self.row.needs_reference:
            raise ValueError(f"beta={self.beta} has no effect: {self.row.name!r} has no KL; set beta to 0")
        if self.aux_loss_enabled:
            raise ValueError("a router's auxiliary loss is not part of a row; set router_aux_loss_coef to 0")
        self._steps: ScaledSteps | None = None
        self._rewards: Tensor | None = None

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """TRL's optimiser, with the row's step scale attached."""
        optimizer = super().create_optimizer(*args, **kwargs)
        if self._steps is None:
            self._steps = ScaledSteps(self.row, reduce=self._sum_over_processes, optimizer=optimizer)
        return optimizer

    def _sum_over_processes(self, values: Tensor) -> Tensor:
        return self.accelerator.reduce(values, reduction="sum")

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        rewards = super()._calculate_rewards(*args, **kwargs)
        self._rewards = rewards
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        rows = len(output["completion_ids"])
        rewards = self._total_rewards()
        tries = self.num_generations if self.model.training else self.num_generations_eval
        # As integers: padding a tensor of booleans changes its type, on one process and not on another.
        mask = self.accelerator.gather(self.accelerator.pad_across_processes(_mask(output).long(), dim=1))
        padded = Padded(mask=mask, rewards=rewards, groups=[row // tries for row in range(len(rewards))])
        # A group may span processes, so each computes the credit of all and takes its rows.
        mine = slice(self.accelerator.process_index * rows, (self.accelerator.process_index + 1) * rows)
        advantages, _ = padded_credit(self.row, padded)
        output["advantages"] = advantages[mine, : output["completion_ids"].shape[1]]
        output["turns_in_batch"] = rewards.new_tensor(padded.pack().turns)
        return output

    def _total_rewards(self) -> Tensor:
        """The weighted sum of the reward functions; a row that none of them could score is refused."""
        assert self._rewards is not None
        if bool(self._rewards.isnan().all(1).any()):
            raise ValueError("a completion has no reward: every reward function returned None; return a number")
        return (self._rewards * self.reward_weights.to(self._rewards.device)).nansum(1)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        training, processes = self.model.training, self.accelerator.num_processes
        log_probs, entropy, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            inputs["completion_ids"].size(1),
            compute_entropy=True,
            **{name: inputs.get(name) for name in _IMAGES},
        )
        padded = Padded(
            mask=_mask(inputs),
            old=inputs.get("old_per_token_logps"),
            sampler=inputs.get("sampling_per_token_logps"),
            reference=inputs.get("ref_per_token_logps"),
            advantages=inputs["advantages"],
        )
        counts = self._counts(inputs, training)
        loss, scores = padded_loss(self.row, padded, log_probs, counts=counts, entropy=entropy)
        metrics = self._metrics["train" if training else "eval"]
        for name, value in metrics_of(loss).items():
            metrics[name].append(value)
        if training and self._steps is not None:
            self._steps.observe(loss, scores)
            for name, value in self._steps.metrics().items():
                metrics[name].append(value)
        # Gradients are averaged over processes; the counts already cover all of them.
        return loss.total * processes

    def _counts(self, inputs: dict[str, Any], training: bool) -> Counts:
        """Of one optimiser step: its share of the generation batch's tokens and turns, and its rows."""
        rows = len(inputs["completion_ids"]) * self.accelerator.num_processes
        tokens, turns = float(inputs["num_items_in_batch"]), float(inputs["turns_in_batch"])
        if not training:
            return host_counts(tokens=tokens, turns=turns, rows=rows)
        steps = self.current_gradient_accumulation_steps
        share = steps / self.args.steps_per_generation
        return host_counts(tokens=tokens * share, turns=turns * share, rows=rows * steps)


def _mask(inputs: dict[str, Any]) -> Tensor:
    mask = inputs["completion_mask"]
    return (mask * inputs["tool_mask"] if "tool_mask" in inputs else mask).bool()
