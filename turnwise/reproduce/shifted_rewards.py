"""Rewards that are right only up to a shift of each prompt, as those of a reward model are."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from turnwise.judges.judge import Per, scores_to_matrix
from turnwise.types import Trajectory


class ShiftedReward:
    """A judge that pays the environment's own reward and, on top, a number that depends on the prompt alone.

    δ(x) ~ N(0, spread²): the same for all answers to a prompt, also for those that a limit cut, so it says nothing
    about which is better.
    """

    def __init__(self, *, spread: float) -> None:
        self._spread = spread

    def prefer(self, task: Any, first: Trajectory, second: Trajectory) -> float:
        """By their rewards: the shift cancels."""
        (one,), (other,) = self.score([first, second], per="episode")
        return scores_to_matrix([one, other])[0][1]

    def score(self, trajectories: Sequence[Trajectory], *, per: Per) -> list[list[float]]:
        """The shifted reward of each episode."""
        if per == "turn":
            raise ValueError("judge: a shift belongs to an episode; set judge.gives=reward")
        return [[each.reward + self._shift(each)] for each in trajectories]

    def _shift(self, trajectory: Trajectory) -> float:
        prompt = trajectory.turns[0].observation if trajectory.turns else ""
        return Random(f"shift:{prompt}").gauss(0.0, self._spread)
