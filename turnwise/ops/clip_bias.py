"""The clipping bias C of ST-PPO, its norm, and the scale made from it.

    C(θ) = ∇ J_unclipped − ∇ J_clipped

At token level C = Σ_t weight_t 1{t clipped} w_t A_t ∇log π_t, at turn level each token of turn k gets
w_k · (Σ_{t in k, clipped} A_t) / n_k. Both are the gradient of the same number, B = J_unclipped − J_clipped, taken
through the ratio that the algorithm uses; so is C for every other clipping surrogate.

Established (reviews and figure caption of 2511.20718): gradients are normalised by ‖C‖₂, at token level in S-PPO and
at turn level in ST-PPO. Not established: the space of the norm, a floor, the batch it is taken over. Those are our
reading.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from turnwise.batch import Scores
from turnwise.ops.facts import Need, Options, declares, formula, warns
from turnwise.ops.parameters import Count, Positive
from turnwise.ops.step_scale import ON_GRADIENT, Apply, Scale
from turnwise.ops.terms import Loss
from turnwise.ranks import Reduce, alone

Estimator = Literal["exact", "logit", "loss"]
Form = Literal["safe", "soft", "paper"]


def bias_coefficients(bias: Tensor, logprob_T: Tensor) -> Tensor:
    """c_t = ∂B / ∂log π_t, so that C = Σ_t c_t ∇log π_t."""
    (coefficient_T,) = torch.autograd.grad(bias, logprob_T, retain_graph=True)
    return coefficient_T


def loss_norm_squared(coefficient_T: Tensor) -> Tensor:
    """‖C‖² if the tokens' gradients were orthonormal: Σ_t c_t². No backward pass."""
    return coefficient_T.square().sum()


def logit_norm_squared(coefficient_T: Tensor, logprob_T: Tensor, collision_T: Tensor) -> Tensor:
    """‖C‖² in the space of logits: Σ_t c_t² ‖e_{y_t} − π_t‖² = Σ_t c_t² (1 − 2 π(y_t) + Σ_v π_v²). No backward pass."""
    distance_T = (1 - 2 * logprob_T.detach().exp() + collision_T.detach()).clamp_min(0)
    return (coefficient_T.square() * torch.where(coefficient_T == 0, 0, distance_T)).sum()


def exact_gradient(bias: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """C itself in parameter space, by a second backward pass over the same forward."""
    gradients = torch.autograd.grad(bias, list(parameters), retain_graph=True, allow_unused=True)
    found: list[Tensor | None] = list(gradients)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def scale_factor(norm: float, *, form: Form, threshold: float) -> float:
    """How much of the step is taken; 1 when nothing was clipped.

    safe: 1 / max(1, ‖C‖/c0);    soft: 1 / (1 + ‖C‖/c0);    paper: 1/‖C‖, which *amplifies* while ‖C‖ < 1
    """
    if norm == 0:
        return 1.0
    if form == "paper":
        return 1 / norm
    excess = norm / threshold
    return 1 / max(1.0, excess) if form == "safe" else 1 / (1 + excess)


def _formula(options: Options) -> str:
    c0 = "c0" if options["threshold"] is None else f"{options['threshold']:g}"
    formulas = {"safe": f"1 / max(1, ‖C‖/{c0})", "soft": f"1 / (1 + ‖C‖/{c0})", "paper": "1 / ‖C‖"}
    calibrated = f",  c0 = {options['target']:g} · median of the first {options['calibration']} norms"
    return formulas[options["form"]] + (calibrated if options["threshold"] is None else "")


@declares(Need.CLIPPING)
@declares(Need.COLLISION, estimator="logit")
@declares(Need.GRADIENT, estimator="exact")
@warns(lambda options: options["apply"] == "gradient", ON_GRADIENT)
@warns(
    lambda options: options["form"] == "paper",
    "form=paper amplifies steps while the norm of the clipping bias is below 1; safe has a floor",
)
@formula(_formula)
@dataclass(kw_only=True)
class ClipBiasScale:
    """Shrink an optimiser step by the norm of its clipping bias.

        scale = 1 / max(1, ‖C‖/c0)      (safe)

    S-PPO / ST-PPO (2511.20718). `apply: step` multiplies what the optimiser does, `gradient` what it is given. Adam
    divides a constant factor out again, and in our pilot `gradient` was near-inert or harmful while `step` kept runs
    alive. `threshold` is c0; None calibrates it: `target` times the median of the first `calibration` non-zero norms,
    so that the mean scale comes out near `target`.
    """

    estimator: Estimator = "loss"
    form: Form = "safe"
    apply: Apply = "step"
    threshold: Positive | None = None
    target: Positive = 1 / 3
    calibration: Count = 32
    _norms: list[float] = field(default_factory=list[float], init=False, repr=False)
    _squared: Tensor | None = field(default=None, init=False, repr=False)
    _gradient: list[Tensor] = field(default_factory=list[Tensor], init=False, repr=False)
    _parameters: Sequence[Tensor] = field(default=(), init=False, repr=False)
    _zero: Tensor = field(default_factory=lambda: torch.zeros(1), init=False, repr=False)
    """Where a rank that clipped nothing puts its zeros: the same kind of tensor as on the other ranks."""

    def observe(self, loss: Loss, scores: Scores, parameters: Sequence[Tensor] = ()) -> None:
        """Add one micro-batch; its bias is None when nothing in it was clipped."""
        self._parameters, self._zero = parameters, scores.logprob_T.detach().new_zeros(1)
        if loss.bias is None or loss.bias_T is None:
            return
        if self.estimator == "exact":
            if not parameters:
                raise ValueError("scale.clip-bias: estimator 'exact' needs the trained parameters")
            self._add_gradient(exact_gradient(loss.bias, parameters))
        elif self.estimator == "loss":
            self._add_squared(loss_norm_squared(loss.bias_T))
        elif scores.collision_T is None:
            raise ValueError("scale.clip-bias: estimator 'logit' needs Scores.collision_T; use 'loss' or 'exact'")
        else:
            self._add_squared(logit_norm_squared(loss.bias_T, scores.logprob_T, scores.collision_T))

    def finish(self, reduce: Reduce = alone) -> Scale:
        """The scale of this step, over all micro-batches and ranks; resets for the next step."""
        norm = self._norm(reduce)
        threshold = self._calibrated(norm)
        self._squared, self._gradient = None, []
        value = scale_factor(norm, form=self.form, threshold=threshold)
        return Scale(value=value, measured=norm, threshold=threshold, apply=self.apply)

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint: the norms that calibrate the threshold."""
        return {"norms": list(self._norms)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._norms = [float(norm) for norm in state["norms"]]

    def _norm(self, reduce: Reduce) -> float:
        if self.estimator == "exact":
            return self._exact_norm(reduce)
        return float(reduce(self._zero if self._squared is None else self._squared[None])) ** 0.5

    def _exact_norm(self, reduce: Reduce) -> float:
        # All ranks must join the sum, even if only one of them clipped tokens.
        if not float(reduce(self._zero + len(self._gradient))):
            return 0.0
        mine = self._gradient or [torch.zeros_like(parameter) for parameter in self._parameters]
        return sum(float(reduce(gradient).double().square().sum()) for gradient in mine) ** 0.5

    def _calibrated(self, norm: float) -> float:
        if self.threshold is not None:
            return self.threshold
        if norm > 0 and len(self._norms) < self.calibration:
            self._norms.append(norm)
        # Until something is clipped the norm is 0 and the scale is 1, whatever the threshold.
        return self.target * statistics.median(self._norms) if self._norms else 1.0

    def _add_squared(self, squared: Tensor) -> None:
        self._squared = squared if self._squared is None else self._squared + squared

    def _add_gradient(self, gradient: list[Tensor]) -> None:
        self._gradient = [a + b for a, b in zip(self._gradient, gradient, strict=True)] if self._gradient else gradient
