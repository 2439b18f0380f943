"""A judge that errs: preferences as people give them, drawn by chance."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from turnwise.judges.judge import scores_to_matrix
from turnwise.types import Trajectory


class NoisyJudge:
    """Prefers one answer outright, drawn with probability σ( (r_first − r_second) / noise ).

    The draw depends on the two answers' names alone, so equal runs hear equal opinions.
    """

    def __init__(self, *, noise: float) -> None:
        if not (math.isfinite(noise) and noise > 0):
            raise ValueError(f"judge.noise is {noise}; it must be a finite number above 0")
        self._noise = noise

    def prefer(self, task: Any, first: Trajectory, second: Trajectory) -> float:
        """1 or 0, and the opposite for the opposite order."""
        if first.id > second.id:
            return 1.0 - self.prefer(task, second, first)
        chance = scores_to_matrix([(first.reward - second.reward) / self._noise, 0.0])[0][1]
        return float(Random(f"noisy:{first.id}:{second.id}").random() < chance)
