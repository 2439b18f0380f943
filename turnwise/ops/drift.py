"""A step scale made from how far the policy has drifted from the one that sampled its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from turnwise.batch import Scores
from turnwise.ops.facts import Need, Options, declares, formula, warns
from turnwise.ops.parameters import Positive
from turnwise.ops.step_scale import ON_GRADIENT, Apply, Scale
from turnwise.ops.terms import Loss
from turnwise.ranks import Reduce, alone

Measure = Literal["kl", "clips"]
Over = Literal["tokens", "turns"]
_COLUMNS: dict[Measure, str] = {"kl": "sampler_kl", "clips": "clipped"}
_TURNS = 64
"""Turn indices that are told apart; later ones count as the last. A fixed number, so that ranks add up."""
_FEWEST = 0.02
"""A turn index with a smaller share of the tokens is too noisy to decide."""


def _formula(options: Options) -> str:
    measured = {"kl": "KL(μ ‖ π)", "clips": "clipped share"}[options["measure"]]
    measured = f"max_k {measured}_k" if options["over"] == "turns" else measured
    if options["drop"]:
        return f"1 if {measured} ≤ {options['target']:g}, else 0"
    power = "" if options["power"] == 1 else f"^{options['power']:g}"
    return f"min(1, {options['target']:g} / {measured}){power}"


@declares(Need.SAMPLER, measure="kl")
@declares(Need.CLIPPING, measure="clips")
@warns(lambda options: options["apply"] == "gradient", ON_GRADIENT)
@formula(_formula)
@dataclass(kw_only=True)
class DriftScale:
    """Shrink an optimiser step once the policy has left the sampler of its data behind.

        scale = min(1, target / KL(μ ‖ π))^power

    The KL (k3, mean over all sampled tokens) is that of the minibatch before the step, so it costs nothing; it counts
    the staleness of the rollout (`max_lag`) too. `measure: clips` takes the share of clipped tokens in its place. A
    high `power` comes near to stopping a rollout's updates where the bound is met, as early stopping does; with `drop`
    a step beyond the target is not taken at all, as in the code of POAD (2405.15821). `over: turns` takes the mean at
    the turn index that has drifted furthest, because late turns drift more and are few.
    """

    measure: Measure = "kl"
    target: Positive = 0.02
    power: Positive = 1.0
    over: Over = "tokens"
    drop: bool = False
    apply: Apply = "step"
    _sums_I2: Tensor | None = field(default=None, init=False, repr=False)
    """By turn index: token count, and the sum of the measure over tokens."""

    def observe(self, loss: Loss, scores: Scores, parameters: Sequence[Tensor] = ()) -> None:
        """Add one micro-batch; uses only its diagnostics."""
        table = loss.table
        if self.measure == "kl" and "sampler_kl" not in table.known:
            raise ValueError("scale.drift: measure 'kl' needs the sampler's log-probs; use 'clips'")
        sums_I2 = table.columns(["tokens", _COLUMNS[self.measure]], rows=_TURNS)
        self._sums_I2 = sums_I2 if self._sums_I2 is None else self._sums_I2 + sums_I2

    def finish(self, reduce: Reduce = alone) -> Scale:
        """The scale of this step, over all micro-batches and ranks; resets for the next step."""
        sums_I2 = reduce(torch.zeros(_TURNS, 2) if self._sums_I2 is None else self._sums_I2)
        self._sums_I2 = None
        total_2 = sums_I2.sum(0)
        drift = float(total_2[1] / total_2[0].clamp_min(1))
        if self.over == "turns":
            many_N2 = sums_I2[sums_I2[:, 0] > _FEWEST * total_2[0]]
            drift = max(drift, float((many_N2[:, 1] / many_N2[:, 0]).max())) if len(many_N2) else drift
        beyond = 0.0 if self.drop else (self.target / max(drift, self.target)) ** self.power
        value = 1.0 if drift <= self.target else beyond
        return Scale(value=value, measured=drift, threshold=self.target, apply=self.apply, metric="train/drift")

    def state_dict(self) -> dict[str, Any]:
        """Empty: no state outlives a step."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""
