"""What a learner asks of a policy, a reference and a critic. `TextPolicy` and `FeaturePolicy` both give it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from turnwise.batch import Scores, TokenBatch
from turnwise.ops.facts import Need

if TYPE_CHECKING:
    from turnwise.expert_routing import Routing
    from turnwise.policy.critics import Bins


class Scorer(Protocol):
    """Scores batches: a policy, or a frozen reference."""

    def score(self, batch: TokenBatch, *, temperature: float = 1.0) -> Scores:
        """Log-probs of the sampled tokens; zero elsewhere."""
        ...


class ValueModel(Protocol):
    """Values the state before every sampled token."""

    @property
    def bins(self) -> Bins | None:
        """The support of a categorical critic; None for a scalar one."""
        ...

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that train, by name."""
        ...

    def assess(self, batch: TokenBatch, policy: Any, routing: Routing | None = None) -> TokenBatch:
        """The batch with `value_T` filled in, and `bootstrap_S` where it is missing."""
        ...


class Policy(Protocol):
    """A policy that a learner can train."""

    provides: frozenset[Need]
    """What the parts of a row may ask for."""
    has_adapter: bool

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        ...

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that train, by name."""
        ...

    def score(
        self,
        batch: TokenBatch,
        *,
        temperature: float = 1.0,
        entropy: bool = False,
        collision: bool = False,
        reverse_kl: bool = False,
        uniform: bool = False,
        reference: Any = None,
        critic: Any = None,
        routing: Routing | None = None,
    ) -> Scores:
        """What the policy says about the sampled tokens; zero elsewhere."""
        ...

    def make_critic(self, *, bins: Bins | None, shared: bool, source: str | None = None) -> ValueModel:
        """A critic for this policy, on its own trunk or on a separate one; `source`: the folder of a reward model."""
        ...

    def make_reference(self) -> Scorer:
        """The policy as it is now, frozen."""
        ...

    def shard(self, critic: Any, reference: Any) -> None:
        """Leave this rank its part of every weight: the policy's, and those of its critic and reference."""
        ...

    def save(self, folder: str | Path) -> None:
        """Write the policy to a folder."""
        ...
