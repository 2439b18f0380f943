"""The task's own reward as a judge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from turnwise.judges.judge import Per, scores_to_matrix
from turnwise.types import Trajectory


class RewardJudge:
    """The better answer earned more: P = sigmoid(scale · (r_first − r_second)).

    With a large scale the answer that earned more always wins; equal rewards are a tie with any scale.
    """

    def __init__(self, *, scale: float = 1.0) -> None:
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"judge.scale is {scale}; it must be a finite number above 0")
        self._scale = scale

    def prefer(self, task: Any, first: Trajectory, second: Trajectory) -> float:
        """By their rewards."""
        (one,), (other,) = self.score([first, second], per="episode")
        return scores_to_matrix([one, other])[0][1]

    def score(self, trajectories: Sequence[Trajectory], *, per: Per) -> list[list[float]]:
        """The scaled reward, of the episode or of each turn."""
        rewards = [[turn.reward for turn in each.turns] if per == "turn" else [each.reward] for each in trajectories]
        return [[self._scale * reward for reward in each] for each in rewards]
