"""What the learning rate does over a run."""

from __future__ import annotations

import math

from turnwise.recipe.schema import Schedule, Train

_FLOOR = 0.1
"""Where linear and cosine end, as a share of the full rate."""
_JUMP = 1.1
"""Rates that differ by more than this factor are told apart."""


def learning_rate_factor(step: int, *, total: int, warmup: int, schedule: Schedule) -> float:
    """The share of the full rate at a step (from 1): a linear rise, then the schedule down to a tenth."""
    if step <= warmup:
        return step / (warmup + 1)
    if schedule == "constant":
        return 1.0
    progress = min((step - warmup - 1) / max(total - warmup - 1, 1), 1.0)
    left = 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return _FLOOR + (1 - _FLOOR) * left


def learning_rate_at(step: int, settings: Train) -> float:
    """The rate of a step as its settings have it; the guard may take less."""
    factor = learning_rate_factor(step, total=settings.steps, warmup=settings.warmup, schedule=settings.schedule)
    return settings.learning_rate * factor


def find_jump(step: int, before: Train, after: Train) -> str:
    """What a change of settings does to the rate of the step that comes next, in words; empty where it does little."""
    old, new = learning_rate_at(step, before), learning_rate_at(step, after)
    if max(old, new) <= _JUMP * min(old, new):
        return ""
    return f"with this change the learning rate of step {step} is {new:.2g}, where it would have been {old:.2g}"
