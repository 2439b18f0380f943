"""When a run is broken: one definition, in words and in numbers, for the guard, for reports and for comparisons.

A run is broken when it has lost what it could do. Success is lost below half of its best level (`LOST`); the format is
lost below a twentieth of valid turns (`INVALID`). A single step is chance, so a loss must last (`LASTING`), and a level
is a median over a few steps (`RECENT`). What moves before that is a sign only beyond its own noise (`SURE`).

Three readers apply this to what each can see: `collapse` to the held-out evaluations of a finished run, `onset` to its
metrics, looking back for what moved first, and `signals` to the metrics of a running run.
"""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.runs.rows import Row, number

LOST = 0.5
"""Share of its best level below which success is lost."""
INVALID = 0.05
"""Share of valid turns below which the format is lost."""
LASTING = 3
"""Steps or evaluations in a row that are not chance."""
RECENT = 5
"""Steps whose median is a level. Two bad steps do not move it, so a signal has three steps to react."""
WINDOW = 20
"""Steps before an event to search for its cause, and over which a slow drift adds up."""
SURE = 6.0
"""How many spreads a move must exceed: training noise has heavier tails than a normal distribution."""
CHANCE = 1e-3
"""A share counts as gone if so few would have less than this probability by chance."""
HEALTHY = 0.9
"""Share of its best level at which success counts as unbroken."""
LEAST_BEST = 0.05
"""Success that never exceeds this cannot be lost: the run never learned."""

COLLAPSE = (
    f"A run has collapsed when its held-out success is below {LOST:.0%} of the best so far (the start included), or "
    f"fewer than {INVALID:.0%} of its turns are valid although more were, in {LASTING} evaluations in a row or in the "
    "last one; or when the guard stopped it."
)
ONSET = (
    f"A run goes wrong at its first guard incident. Without one, it goes wrong when success (median of {RECENT} steps) "
    "falls below half of its best and stays there to the end, or is gone in the last step. The onset is then the first "
    f"step, from {WINDOW} steps before success was last at {100 * HEALTHY:g} % of its best, at which a signal crossed "
    f"an absolute bound, or left its band for {LASTING} steps in a row: more than {SURE:g} robust standard deviations "
    f"(1.4826 × median absolute deviation) beyond the median of the {WINDOW} steps before, in the direction that is "
    "bad for it. The signal that moved first is named, or success itself if none did."
)


def is_lost(now: float, best: float) -> bool:
    """Whether success, or another share that should stay up, has fallen too far below its best level."""
    return now < LOST * best


def is_invalid(share: float, best: float) -> bool:
    """Whether hardly any turn is valid although more were: a policy that never had valid turns has nothing to lose."""
    return share < INVALID <= best


def without_own_losses(rows: Sequence[Row]) -> list[Row]:
    """The rows without success and reward if the policy wins only what it loses itself: those cannot get better."""
    said = [share for row in rows if (share := number(row, "rollout/zero_sum")) is not None]
    if not said or said[-1] < 1:
        return list(rows)
    return [
        {name: value for name, value in row.items() if name not in ("rollout/success", "rollout/reward")}
        for row in rows
    ]
