"""What the learning rate does over a run."""

from __future__ import annotations

import math

from turnwise.train.config import Schedule

_FLOOR = 0.1
"""Where linear and cosine end, as a share of the full rate."""


def learning_rate_factor(step: int, *, total: int, warmup: int, schedule: Schedule) -> float:
    """The share of the full rate at a step (from 1): a linear rise, then the schedule down to a tenth."""
    if step <= warmup:
        return step / (warmup + 1)
    if schedule == "constant":
        return 1.0
    progress = min((step - warmup - 1) / max(total - warmup - 1, 1), 1.0)
    left = 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return _FLOOR + (1 - _FLOOR) * left
