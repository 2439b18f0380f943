"""A judge that errs: preferences as people give them, drawn by chance."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from turnwise.types import Trajectory


class NoisyJudge:
    """Prefers one answer outright, drawn with probability σ( (r_first − r_second) / noise ).

    The draw depends on the two answers' names alone, so equal runs hear equal opinions.
    """

    def __init__(self, *, noise: float) -> None:
        self._noise = noise

    def prefer(self, task: Any, first: Trajectory, second: Trajectory) -> float:
        """1 or 0, and the opposite for the opposite order."""
        if first.id > second.id:
            return 1.0 - self.prefer(task, second, first)
        chance = 1 / (1 + math.exp(-(first.reward - second.reward) / self._noise))
        return float(Random(f"noisy:{first.id}:{second.id}").random() < chance)
