"""Which tasks to try and how often. A plan only says it; the scheduler does it."""

from dataclasses import dataclass

from turnwise.ops.facts import Trait, declares
from turnwise.ops.parameters import Count, GroupSize


@dataclass(frozen=True, kw_only=True)
class SamplingPlan:
    """How many tries each task gets."""

    tries: int


def plain(*, tries: Count = 1) -> SamplingPlan:
    """Independent episodes.

    y ~ μ( · | x)
    """
    return SamplingPlan(tries=tries)


@declares(Trait.MAKES_GROUPS)
def group(*, size: GroupSize = 8) -> SamplingPlan:
    """Several tries at each task, to be compared with each other.

    y_1 … y_n ~ μ( · | x),   n = size
    """
    return SamplingPlan(tries=size)


SAMPLING = {"plain": plain, "group": group}
