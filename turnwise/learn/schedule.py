"""The learning rate over a run."""

from __future__ import annotations

import math

from turnwise.recipe.schema import Schedule, Train

_FLOOR = 0.1
"""The final rate of linear and cosine, as a share of the full rate."""
_JUMP = 1.1
"""A change of rate by more than this factor is reported."""


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
    """The rate of a step by its settings; the guard may lower it."""
    factor = learning_rate_factor(step, total=settings.steps, warmup=settings.warmup, schedule=settings.schedule)
    return settings.learning_rate * factor


def find_jump(step: int, before: Train, after: Train) -> str:
    """How a change of settings changes the next step's rate, in words; empty if it changes little."""
    old, new = learning_rate_at(step, before), learning_rate_at(step, after)
    if max(old, new) <= _JUMP * min(old, new):
        return ""
    return f"this change sets the learning rate of step {step} to {new:.2g}; without it, it would be {old:.2g}"
