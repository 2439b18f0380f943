"""Episodes that the environment failed to finish, and when a run gives up on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.sources.rollout_metrics import answered, explain_failure, find_errors
from turnwise.types import Group

_LOST_STEPS, _LOST_EPISODES = 3, 8
"""A run ends after this many steps and failures in a row without an episode that the environment finished."""


@dataclass(kw_only=True)
class FaultCount:
    """A run's environment failures; part of every checkpoint."""

    lost: int = 0
    """Steps in a row with failures and no finished episode."""
    failures: int = 0
    """Episodes that failed in these steps."""
    last_error: str = ""
    """The last error."""
    answered: bool = False
    """Whether the environment ever finished an episode."""

    def add(self, groups: Sequence[Group]) -> list[str]:
        """Count a step; returns its errors."""
        errors = find_errors(groups)
        if answered(groups):
            self.lost, self.failures, self.answered = 0, 0, True
        elif errors:
            self.lost, self.failures = self.lost + 1, self.failures + len(errors)
        self.last_error = errors[-1] if errors else self.last_error
        return errors

    def is_enough(self, *, share: float) -> bool:
        """Whether a run should end after a step that lost this share of its episodes."""
        return self.lost >= _LOST_STEPS and (self.failures >= _LOST_EPISODES or share == 1)

    def explain(self, env: str) -> str:
        """Why a run ends because of its environment."""
        return explain_failure(env, self.failures, self.last_error)
