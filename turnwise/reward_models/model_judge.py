"""A reward model as a judge: `judge: {kind: reward-model, path: runs/rm, gives: reward}`."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from turnwise.judges.judge import Per, scores_to_matrix
from turnwise.reward_models.reward_model import RewardModel
from turnwise.torch_ranks import own_device
from turnwise.types import Trajectory

REMEMBERED = 8192
"""Episodes whose scores are kept: evaluations often see the same words again."""
_Said = tuple[tuple[str, str], ...]


class RewardModelJudge:
    """Scores what was said, whatever policy said it; the log-odds of two answers are the difference of their scores."""

    def __init__(self, *, path: str, device: str = "auto", scale: float = 1.0) -> None:
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"judge.scale is {scale}; it must be a finite number above 0")
        chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        self._model, self._scale = RewardModel.load(path, device=own_device(chosen)), scale
        self._known: OrderedDict[_Said, list[float]] = OrderedDict()

    def prefer(self, task: Any, first: Trajectory, second: Trajectory) -> float:
        """By their scores."""
        (one,), (other,) = self.score([first, second], per="episode")
        return scores_to_matrix([one, other])[0][1]

    def score(self, trajectories: Sequence[Trajectory], *, per: Per) -> list[list[float]]:
        """The scaled score after the last turn, or after each turn."""
        said = [tuple((turn.observation, turn.action) for turn in each.turns) for each in trajectories]
        new = {words: each for words, each in zip(said, trajectories, strict=True) if words not in self._known}
        self._known |= zip(new, self._model.score_episodes(list(new.values())), strict=True)
        found = [[self._scale * score for score in self._known[words]] for words in said]
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return found if per == "turn" else [scores[-1:] for scores in found]
