"""Extrapolation after a step, of weights or of logits, and the weights that it starts from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from turnwise.algorithm import Algorithm, Need, Trait
from turnwise.algorithm.axes import EXTRAPOLATE
from turnwise.algorithm.parts import bind
from turnwise.learn.optimizer import Optimizer
from turnwise.policy.learnable import Policy, Scorer
from turnwise.policy.mixed_policy import MixedPolicy
from turnwise.policy.text import TextPolicy
from turnwise.ranks import Ranks


class Extrapolation(Protocol):
    """What a learner does around the updates of a step."""

    @property
    def sampler(self) -> Scorer | None:
        """Who has sampled what the next step learns from; None: the policy itself."""
        ...

    @property
    def before(self) -> dict[str, Tensor]:
        """What the updates of the step before had made of the weights: part of every checkpoint, loaded in place."""
        ...

    def restart(self) -> None:
        """Begin at the present weights."""
        ...

    def before_update(self) -> None:
        """An update of the step is about to be taken."""
        ...

    def take(self, ranks: Ranks) -> dict[str, float]:
        """The updates of a step are done; returns metrics."""
        ...


def make_extrapolation(
    row: Algorithm, policy: Policy, optimizer: Optimizer, mixture: MixedPolicy | None = None
) -> Extrapolation | None:
    """The row's own; None if weights stay as the updates leave them. `mixture`: what an engine samples from."""
    if Trait.NEUTRAL in row.facts("extrapolate"):
        return None
    if Need.PREVIOUS_POLICY not in row.needs:
        return WeightExtrapolation(bind(EXTRAPOLATE, row.extrapolate), optimizer)
    if mixture is None:
        assert isinstance(policy, TextPolicy)  # no other provides it
        mixture = make_mixture(row, policy)
    assert mixture is not None
    return LogitExtrapolation(mixture)


def make_mixture(row: Algorithm, policy: TextPolicy) -> MixedPolicy | None:
    """What such a row samples from; None if that is the policy itself."""
    if Need.PREVIOUS_POLICY not in row.needs or Trait.NEUTRAL in row.facts("extrapolate"):
        return None
    return MixedPolicy(policy, bind(EXTRAPOLATE, row.extrapolate))


class WeightExtrapolation:
    """Moves weights on after the updates of a step."""

    sampler = None

    def __init__(self, part: Callable[[Tensor, Tensor], Tensor], optimizer: Optimizer) -> None:
        self._part, self._optimizer = part, optimizer
        self.before: dict[str, Tensor] = {}
        """This rank's part of each, in single precision."""
        self.restart()

    def restart(self) -> None:
        """Begin at the present weights."""
        self.before = {name: weight.clone() for name, weight in self._optimizer.wide_weights()}

    def before_update(self) -> None:
        """Nothing is due before an update."""

    @torch.no_grad()
    def take(self, ranks: Ranks) -> dict[str, float]:
        """Extrapolate every weight; returns the norm of the change."""
        norms: dict[str, Tensor] = {}

        def extrapolate(name: str, now: Tensor) -> Tensor:
            target = self._part(now, self.before[name])
            norms[name] = torch.linalg.vector_norm(target - now)
            self.before[name].copy_(now)
            return target

        self._optimizer.rewrite(extrapolate)
        return {"train/extrapolated": float(self._optimizer.norm_over(ranks, norms))}


class LogitExtrapolation:
    """Leaves the weights alone: engine and learner mix their logits with those of the step before."""

    def __init__(self, mixture: MixedPolicy) -> None:
        self.sampler = mixture
        self._is_first = True

    @property
    def before(self) -> dict[str, Tensor]:
        """The weights themselves, in the model's precision."""
        return self.sampler.earlier()

    def restart(self) -> None:
        """Begin at the present weights."""
        self.sampler.renew()
        self._is_first = True

    def before_update(self) -> None:
        """The first update of a step leaves the policy that the next mixture starts from."""
        if self._is_first:
            self.sampler.renew()
            self._is_first = False

    def take(self, ranks: Ranks) -> dict[str, float]:
        """The next update is the first of another step."""
        self._is_first = True
        return {}
