"""What a learner remembers of all batches so far, for the reward parts that ask for it. Equal on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

from turnwise.algorithm import Algorithm, Need
from turnwise.algorithm.parts import facts
from turnwise.batch import Moments, Remembered, TokenBatch
from turnwise.ops.groups import ReturnTable
from turnwise.ops.rewards import next_kl_coef
from turnwise.ranks import Ranks


class RunHistory:
    """The state of reward parts: `batch = history.told(batch, ranks)`, then credit, then `history.keep(batch, ranks)`.

    A batch whose credit fails is not kept.
    """

    def __init__(self, row: Algorithm) -> None:
        self.returns = Moments() if Need.REWARD_HISTORY in row.needs else None
        self._control = _kl_control(row)
        self.kl_coef: float | None = None if self._control is None else self._control["coef"]

    def told(self, batch: TokenBatch, ranks: Ranks) -> TokenBatch:
        """The batch with what the row's parts ask for; its own returns are in the history."""
        if self.returns is None and self.kl_coef is None:
            return batch
        returns = self.returns
        if returns is not None:
            returns = Moments.pooled([returns, *ranks.gather(Moments.of(_returns(batch)))])
        return batch.with_(history=Remembered(returns=returns, kl_coef=self.kl_coef))

    def keep(self, batch: TokenBatch, ranks: Ranks) -> None:
        """Remember a batch, and let the coefficient follow its KL."""
        if batch.history is not None:
            self.returns = batch.history.returns
        if self._control is not None and self.kl_coef is not None:
            target, gain = self._control["target"], self._control["gain"]
            self.kl_coef = next_kl_coef(self.kl_coef, _trajectory_kl(batch, ranks), target=target, gain=gain)

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {"returns": None if self.returns is None else astuple(self.returns), "kl_coef": self.kl_coef}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore from `state_dict()`; what another row did not keep begins here."""
        if self.returns is not None and state.get("returns") is not None:
            self.returns = Moments(*state["returns"])
        if self.kl_coef is not None and state.get("kl_coef") is not None:
            self.kl_coef = float(state["kl_coef"])


def history_metrics(history: Remembered | None) -> dict[str, float]:
    """What the parts of a step were told, for `metrics.jsonl`."""
    metrics: dict[str, float] = {}
    if history is not None and history.returns is not None:
        metrics |= {"train/reward_mean": history.returns.mean, "train/reward_std": history.returns.variance**0.5}
    if history is not None and history.kl_coef is not None:
        metrics["train/kl_coef"] = history.kl_coef
    return metrics


def _kl_control(row: Algorithm) -> Mapping[str, Any] | None:
    """The options of the part whose coefficient adapts; `resolve` refuses a second one."""
    return next((part.options for axis, part in row.parts() if Need.KL_CONTROL in facts(axis, part)), None)


def _returns(batch: TokenBatch) -> Tensor:
    """The returns of the trajectories in which anything was sampled."""
    return ReturnTable.of(batch).return_N[_spoken(batch)]


def _spoken(batch: TokenBatch) -> Tensor:
    return batch.trajectory_S[batch.sequence_T[batch.sampled_T]].unique()


def _trajectory_kl(batch: TokenBatch, ranks: Ranks) -> float:
    """The KL to the reference over whole trajectories, estimated by what was sampled; the mean over all ranks."""
    assert batch.old_T is not None
    assert batch.ref_T is not None
    total = (batch.old_T - batch.ref_T)[batch.sampled_T].double().sum()
    summed, count = ranks.reduce(torch.stack([total, total.new_tensor(_spoken(batch).numel())])).tolist()
    return summed / max(count, 1)
