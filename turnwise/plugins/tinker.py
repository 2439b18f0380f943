"""Tinker: a row as the custom loss of `forward_backward_custom`, for any service that speaks its protocol.

    loss = TinkerLoss("row.yaml")                                     # ratio: {kind: turn, against: mu}
    data = loss.credited(data, rewards=rewards, groups=task_ids)      # advantages into the data
    client.forward_backward_custom(data, loss).result()
    client.optim_step(AdamParams(learning_rate=rate * loss.step_scale())).result()

A datum has `target_tokens`, the sampler's `logprobs`, `mask` (1 where the policy sampled the target), and optionally
`turn_ids` and `ref_logprobs`, each as long as `target_tokens`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
from tinker.types import Datum, TensorData  # pyright: ignore[reportMissingImports]
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from turnwise.algorithm import Algorithm, Need
from turnwise.plugins.hosts import ROW_COUNTS, HostTrainer, chosen_algorithm
from turnwise.plugins.padded import Padded, metrics_of, padded_credit, padded_loss
from turnwise.plugins.scaled_steps import ScaledSteps
from turnwise.ranks import alone

HOST = HostTrainer(
    name="Tinker",
    loss=ROW_COUNTS | {Need.SAMPLER, Need.REFERENCE, Need.TOKEN_COUNT, Need.TURN_COUNT},
    credit=frozenset(),
    counts_rejected=False,
    instead={
        Need.OLD: "set ratio.against to mu and mismatch to none",
        Need.ENTROPY: "set regularizers to []",
    },
)


class TinkerLoss:
    """A loss for `forward_backward_custom`; one call covers one optimiser step."""

    def __init__(self, algorithm: str | Algorithm | None = None) -> None:
        self.row = chosen_algorithm(algorithm)
        HOST.require(self.row)
        self._steps = ScaledSteps(self.row, reduce=alone)

    def __call__(self, data: list[Datum], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        """The loss of all data together, and its diagnostics."""
        padded = Padded(
            mask=_stacked(data, "mask").bool(),
            turn_ids=_optional(data, "turn_ids"),
            sampler=_stacked(data, "logprobs"),
            reference=_optional(data, "ref_logprobs"),
            advantages=_stacked(data, "advantages"),
        )
        loss, scores = padded_loss(self.row, padded, pad_sequence(logprobs, batch_first=True))
        self._steps.observe(loss, scores)
        return loss.total, metrics_of(loss)

    def credited(self, data: list[Datum], *, rewards: Sequence[float], groups: Sequence[Hashable]) -> list[Datum]:
        """The data with the row's advantages: one reward for each datum, equal groups for tries at the same task."""
        padded = Padded(
            mask=_stacked(data, "mask").bool(),
            turn_ids=_optional(data, "turn_ids"),
            rewards=torch.tensor(rewards),
            groups=groups,
        )
        advantages, _ = padded_credit(self.row, padded)
        return [_with_advantages(datum, row) for datum, row in zip(data, advantages, strict=True)]

    def step_scale(self) -> float:
        """The factor on the learning rate of the coming `optim_step`; call it once for each."""
        return self._steps.finish()


def _stacked(data: list[Datum], name: str) -> Tensor:
    missing = [str(number) for number, datum in enumerate(data) if name not in datum.loss_fn_inputs]
    if missing:
        raise ValueError(f"loss_fn_inputs has no {name!r} in datum {', '.join(missing)}; add it to every datum")
    return pad_sequence([datum.loss_fn_inputs[name].to_torch() for datum in data], batch_first=True)


def _optional(data: list[Datum], name: str) -> Tensor | None:
    return _stacked(data, name) if any(name in datum.loss_fn_inputs for datum in data) else None


def _with_advantages(datum: Datum, advantages: Tensor) -> Datum:
    length = len(datum.loss_fn_inputs["target_tokens"].data)
    inputs: dict[str, Any] = {**datum.loss_fn_inputs, "advantages": TensorData.from_torch(advantages[:length])}
    return replace(datum, loss_fn_inputs=inputs)
