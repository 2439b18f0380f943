"""prime-rl: a custom loss by import path.

    [trainer.loss]
    type = "custom"
    import_path = "turnwise.plugins.prime_rl.loss"
    kwargs = {algorithm = "row.yaml"}           # ratio: {kind: turn, against: mu}, weights: token-mean, scale: none

prime-rl calls a loss sequence by sequence, adds up and divides by the step's tokens. Its orchestrator computes
advantages. So rows that average over anything but tokens, scale steps or need more than two log-probs are refused.
"""

from __future__ import annotations

from functools import cache

import torch
from prime_rl.trainer.rl.loss import LossInputs, LossOutputs  # pyright: ignore[reportMissingImports]

from turnwise.algorithm import Algorithm, Need
from turnwise.plugins.hosts import HostTrainer, chosen_algorithm
from turnwise.plugins.padded import Padded, host_counts, metrics_of, padded_loss

HOST = HostTrainer(
    name="prime-rl",
    loss=frozenset({Need.SAMPLER, Need.TOKEN_COUNT}),
    credit=None,
    scales=False,
    instead={
        Need.OLD: "set ratio.against to mu and mismatch to none",
        Need.REFERENCE: "set regularizers to []",
        **dict.fromkeys(
            (Need.TURN_COUNT, Need.SEQUENCE_COUNT, Need.TRAJECTORY_COUNT, Need.UNIT_COUNT), "set weights to token-mean"
        ),
    },
)


@cache
def _row(algorithm: str | None) -> Algorithm:
    row = chosen_algorithm(algorithm)
    HOST.require(row)
    return row


def loss(inputs: LossInputs, algorithm: str | None = None) -> LossOutputs:
    """The summed loss of one sequence; `algorithm` is a preset or a YAML file, by default TURNWISE_ALGORITHM."""
    padded = Padded(
        mask=inputs.loss_mask[None],
        sampler=inputs.inference_logprobs[None],
        advantages=inputs.advantages[None],
        weights=None if inputs.loss_weights is None else inputs.loss_weights[None],
    )
    result, _ = padded_loss(_row(algorithm), padded, inputs.trainer_logprobs[None], counts=host_counts(tokens=1))
    device = result.total.device
    metrics = {name: torch.tensor(value, device=device) for name, value in metrics_of(result).items()}
    return LossOutputs(loss=result.total, metrics=metrics)
