"""How often to try each task, and when to try more. Plans only describe this; the source carries it out."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from turnwise.ops.facts import Trait, declares, refuses
from turnwise.ops.parameters import Count, GroupSize

Schedule = Literal["et", "hw"]
"""Who gets further tries: all hard tasks the same total advantage (ET), or the harder the more (HW)."""
_ROUNDING = 1e-9
"""A count that is whole up to this is not rounded up: 1/S is seldom exact."""


@dataclass(frozen=True, kw_only=True)
class SamplingPlan:
    """How many tries each task gets."""

    tries: int
    refill: int = 0
    """Rounds in which new tasks replace those that the filters drop entirely."""
    extra: Callable[[float], int] | None = None
    """Further tries that a task wants, in the same step and group, from the share of its first tries that succeeded."""
    most: int = 0
    """Tries that a task can get, further ones included; 0: there are none."""
    budget: int | None = None
    """Further tries of a whole step; None: no limit."""

    @property
    def longest(self) -> int:
        """The most tries in a group."""
        return max(self.tries, self.most)

    def further(self, successes: Sequence[float | None], *, spent: int = 0) -> list[int]:
        """How often to try each task again, from the success of its first tries (None: unknown, so not at all).

        `spent` is what the step has already taken from its budget.
        """
        extra, room = self.extra, self.longest - self.tries
        if extra is None:
            return [0] * len(successes)
        wanted = [0 if success is None else min(extra(success), room) for success in successes]
        return wanted if self.budget is None else _within(self.budget - spent, wanted)


def plain(*, tries: Count = 1) -> SamplingPlan:
    """Independent episodes.

    y ~ μ( · | x)
    """
    return SamplingPlan(tries=tries)


@declares(Trait.MAKES_GROUPS)
def group(*, size: GroupSize = 8, refill: Count | None = None) -> SamplingPlan:
    """Several tries at each task, to be compared with each other.

    y_1 … y_n ~ μ( · | x),   n = size
    refill: further tasks x until the filters leave a full batch, in at most so many rounds

    DAPO (2503.14476) refills, which it calls dynamic sampling: a round plays as many tasks as groups are missing, so
    the batch is full or the rounds are over.
    """
    return SamplingPlan(tries=size, refill=refill or 0)


@declares(Trait.MAKES_GROUPS)
@refuses(lambda options: options["most"] < options["size"], "most={most} is below size={size}; raise it")
def dars(
    *,
    size: GroupSize = 8,
    schedule: Schedule = "et",
    most: GroupSize = 32,
    std: bool = False,
    budget: Count | None = None,
    refill: Count | None = None,
) -> SamplingPlan:
    """Several tries at each task, and further ones where few of them succeeded.

        y_1 … y_n ~ μ( · | x),   n = size;   u = the share that succeeds, 1/(2n) if none does
        u < 1/2:   ⌈ (h − n S) / S ⌉ further tries, at most `most` in all
        et: h = peak;   hw: h = 2 (1−u) peak;   S = 2u(1−u), peak = n/2;   with std: S = 2√(u(1−u)), peak = n
        budget: so many further tries in a step, shared in proportion if the tasks want more
        refill: further tasks x until the filters leave a full batch, in at most so many rounds

    DARS (2508.13755): n S(u) is the sum of |A| over a group, which is small for hard tasks. ET lifts it to that of a
    task at 1/2, HW above. `std` is for advantages that are divided by the spread. The budget is ours.
    """
    extra = partial(further_tries, size=size, schedule=schedule, std=std)
    return SamplingPlan(tries=size, refill=refill or 0, extra=extra, most=most, budget=budget)


def further_tries(success: float, *, size: int, schedule: Schedule, std: bool = False) -> int:
    """How often to try a task again, of which this share of the first `size` tries succeeded.

    Example for 8 tries: 0, 1, 2, 3 and 4 successes give 27, 11, 3, 1 and 0 further tries (et), 56, 24, 8, 3, 0 (hw).
    """
    if success >= 0.5:
        return 0
    rate = success or 0.5 / size
    weight = 2 * math.sqrt(rate * (1 - rate)) if std else 2 * rate * (1 - rate)
    peak = size if std else size / 2
    wanted = peak if schedule == "et" else 2 * (1 - rate) * peak
    return math.ceil((wanted - size * weight) / weight - _ROUNDING)


def _within(budget: int, wanted: Sequence[int]) -> list[int]:
    """What each gets of a budget: what it wants, or its share of what there is, to the largest remainders first.

    Example: of 10, wishes of 27, 11 and 3 get 6, 3 and 1. The hardest task must not take everything: it may be
    impossible.
    """
    total = sum(wanted)
    if total <= budget:
        return list(wanted)
    given = [want * budget // total for want in wanted]
    by_remainder = sorted(range(len(wanted)), key=lambda place: -(wanted[place] * budget % total))
    for place in by_remainder[: budget - sum(given)]:
        given[place] += 1
    return given


SAMPLING = {"plain": plain, "group": group, "dars": dars}
