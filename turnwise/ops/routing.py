"""Which experts a mixture-of-experts model uses while it learns: those of the sampler, of the old policy, or its own.

A replay takes the recorded experts with the present scores of the router, so the router still learns. MiniRL
(2512.01374) replays so that a router that chooses otherwise after an update, or in another precision, does not change
what is compared.
"""

from __future__ import annotations

from torch import Tensor

from turnwise.batch import TokenBatch
from turnwise.ops.facts import Need, Trait, declares


@declares(Trait.NEUTRAL)
def free(batch: TokenBatch) -> Tensor | None:
    """Every pass chooses its experts by itself.

    E_t = top-k of π's router
    """
    return None


@declares(Need.ROUTING)
def recorded(batch: TokenBatch) -> Tensor | None:
    """Replay what the sampler chose, for every token that it ran, in the old policy too (R3).

    E_t = E_t(μ) in π_old and in every update of π; where it is unknown the router chooses
    """
    return batch.extra_T.get("routing")


@declares(Need.OLD, Need.OLD_ROUTING)
def old(batch: TokenBatch) -> Tensor | None:
    """Replay what the learner chose when it scored the old policy (R2); the first update is as without.

    E_t = E_t(π_old) in every update of π
    """
    return batch.extra_T.get("old_routing")


ROUTINGS = {"free": free, "recorded": recorded, "old": old}
