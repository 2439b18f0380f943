"""How often to try each task, and when to try more. Plans only describe this; the source carries it out."""

from dataclasses import dataclass

from turnwise.ops.facts import Trait, declares
from turnwise.ops.parameters import Count, Discount, GroupSize

_HARD = 0.25
"""The default success share up to which a task counts as hard."""


@dataclass(frozen=True, kw_only=True)
class SamplingPlan:
    """How many tries each task gets."""

    tries: int
    refill: int = 0
    """Rounds in which new tasks replace those that the filters drop entirely."""
    second: int = 0
    """Extra tries at hard tasks, in the same step and group."""
    hard: float = _HARD
    """The share of successes up to which a task is hard."""


def plain(*, tries: Count = 1) -> SamplingPlan:
    """Independent episodes.

    y ~ μ( · | x)
    """
    return SamplingPlan(tries=tries)


@declares(Trait.MAKES_GROUPS)
def group(
    *,
    size: GroupSize = 8,
    refill: Count | None = None,
    second: Count | None = None,
    hard: Discount | None = None,
) -> SamplingPlan:
    """Several tries at each task, to be compared with each other.

    y_1 … y_n ~ μ( · | x),   n = size
    refill: further tasks x until the filters leave a full batch, in at most so many rounds
    second: so many further tries at a hard task
    hard: up to this share of successes in the first n tries

    DAPO (2503.14476) refills, which it calls dynamic sampling: a round plays as many tasks as groups are missing, so
    the batch is full or the rounds are over. DARS (2508.13755) gives hard tasks a second helping.
    """
    share = _HARD if hard is None else hard
    return SamplingPlan(tries=size, refill=refill or 0, second=second or 0, hard=share)


SAMPLING = {"plain": plain, "group": group}
