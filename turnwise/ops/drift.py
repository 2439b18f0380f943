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
_COLUMNS: dict[Measure, str] = {"kl": "sampler_kl", "clips": "clipped"}


def _formula(options: Options) -> str:
    measured = {"kl": "KL(μ ‖ π)", "clips": "clipped share"}[options["measure"]]
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
    a step beyond the target is not taken at all, as in the code of POAD (2405.15821).
    """

    measure: Measure = "kl"
    target: Positive = 0.02
    power: Positive = 1.0
    drop: bool = False
    apply: Apply = "step"
    _sums: Tensor | None = field(default=None, init=False, repr=False)
    """Token count, and the sum of the measure over tokens."""

    def observe(self, loss: Loss, scores: Scores, parameters: Sequence[Tensor] = ()) -> None:
        """Add one micro-batch; uses only its diagnostics."""
        table = loss.table
        if self.measure == "kl" and "sampler_kl" not in table.known:
            raise ValueError("scale.drift: measure 'kl' needs the sampler's log-probs; use 'clips'")
        sums = torch.stack([table.total("tokens"), table.total(_COLUMNS[self.measure])])
        self._sums = sums if self._sums is None else self._sums + sums

    def finish(self, reduce: Reduce = alone) -> Scale:
        """The scale of this step, over all micro-batches and ranks; resets for the next step."""
        sums = reduce(torch.zeros(2) if self._sums is None else self._sums)
        self._sums = None
        drift = float(sums[1] / sums[0].clamp_min(1))
        beyond = 0.0 if self.drop else (self.target / max(drift, self.target)) ** self.power
        value = 1.0 if drift <= self.target else beyond
        return Scale(value=value, measured=drift, threshold=self.target, apply=self.apply, metric="train/drift")

    def state_dict(self) -> dict[str, Any]:
        """Empty: no state outlives a step."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""
