"""Extrapolation after a step: momentum between policies, not between gradients (APO, arXiv 2410.06293).

The acceleration is exact for softmax policies that are linear in their parameters; for deep networks parameters are
our reading of it [M], and the mixture of logits is exact for each token, not for each sequence.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from turnwise.ops.facts import Need, Trait, declares

Alpha = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


@declares(Trait.NEUTRAL)
def no_extrapolation(now: Tensor, before: Tensor) -> Tensor:
    """Keep what the step learnt.

    θ_{t+1} = θ̂_{t+1}
    """
    return now


@declares(Trait.NEUTRAL, alpha=0.0)
@declares(Need.PREVIOUS_WEIGHTS)
def parameters(now: Tensor, before: Tensor, *, alpha: Alpha = 0.3) -> Tensor:
    """Go on in the direction of the last step, from where its updates ended to where the next ones begin.

    θ_{t+1} = θ̂_{t+1} + alpha (θ̂_{t+1} − θ̂_t)     θ̂_t: un-extrapolated weights of the step before
    """
    return extrapolated(now, before, alpha=alpha)


@declares(Trait.NEUTRAL, alpha=0.0)
@declares(Need.PREVIOUS_POLICY)
def logits(now: Tensor, before: Tensor, *, alpha: Alpha = 0.3) -> Tensor:
    """Sample from two policies at once, and compare with both in the next step. Weights stay as the updates leave them.

    π_{t+1} = softmax( (1 + alpha) z(θ̂_{t+1}) − alpha z(θ̂_t) )     z: logits of each token
    """
    return extrapolated(now, before, alpha=alpha)


def extrapolated(now: Tensor, before: Tensor, *, alpha: float) -> Tensor:
    """now + alpha (now − before)"""
    return now + alpha * (now - before)


EXTRAPOLATIONS = {"none": no_extrapolation, "parameters": parameters, "logits": logits}


# The exact case, for tests and studies.


def exact_iterations(reward_A: Tensor, *, alpha: float, beta: float, iterations: int) -> list[Tensor]:
    """The log-probs of π̂ after 1, 2, … iterations on a bandit, from the uniform policy.

    π̂_{t+1} ∝ π_t exp(r / beta);   π_{t+1} ∝ π̂_{t+1} (π̂_{t+1} / π̂_t)^alpha
    """
    found: list[Tensor] = []
    before = policy = torch.zeros_like(reward_A).log_softmax(-1)
    for _ in range(iterations):
        now = (policy + reward_A / beta).log_softmax(-1)
        policy = extrapolated(now, before, alpha=alpha).log_softmax(-1)
        before = now
        found.append(now)
    return found


def effective_iterations(iterations: int, *, alpha: float) -> float:
    """How many iterations without extrapolation give the same policy, if rewards are exact.

    c_{t+1} = (1 + alpha) c_t − alpha c_{t−1} + 1  ⇒  c_t = t / (1 − alpha) − alpha (1 − alpha^t) / (1 − alpha)²
    """
    return iterations / (1 - alpha) - alpha * (1 - alpha**iterations) / (1 - alpha) ** 2
