"""`actions/two-ways`: a short action that pays a little less than a long one. How tokens are discounted decides."""

from __future__ import annotations

from typing import Any

from turnwise.envs.base import Env, Reset, Step

PLACES = ("bridge", "church", "farm", "mill", "school", "tower")
LEFT, RIGHT = "left", "right"
LONGEST = 20
"""Tokens of an action."""


class TwoWays(Env):
    """Go left, which is short, or right, which is long and pays more: `make("actions/two-ways", short=2, long=10)`.

        from the mill  →  left                    0.9
        from the mill  →  right 1 2 3 4 5 6 7 8   1.0

    Lengths are in tokens, one for each word and one for the end of the turn. A discount of gamma for every token makes
    the short way the better one where gamma^(long − short) < small. The miniature of POAD (2405.15821).
    """

    def __init__(self, *, short: int = 2, long: int = 10, small: float = 0.9, split: str = "train") -> None:
        super().__init__(split=split)
        if not 2 <= short < long <= LONGEST:
            raise ValueError(f"short={short} and long={long}: a way has 2 to {LONGEST} tokens, and long has more")
        if not 0 < small < 1:
            raise ValueError(f"small is {small:g}; the short way pays more than 0 and less than 1")
        self.rewards = {_way(LEFT, short): small, _way(RIGHT, long): 1.0}

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Start at a place, which makes no difference; `task` is not used."""
        super().reset(seed=seed)
        return f"from the {self.rng.choice(PLACES)}", {}

    def step(self, action: str) -> Step:
        """Arrive, or get lost."""
        way = " ".join(action.split())
        reward = self.rewards.get(way, 0.0)
        scores = {"long": float(reward == 1.0), "short": float(0 < reward < 1)}
        return "", reward, True, False, {"success": reward == 1.0, "valid": reward > 0, "scores": scores}

    def sample_random_action(self) -> str:
        """Either way."""
        return self.rng.choice(tuple(self.rewards))

    def oracle(self) -> str:
        """The long way."""
        return max(self.rewards, key=self.rewards.__getitem__)


def _way(first: str, tokens: int) -> str:
    return " ".join([first, *map(str, range(1, tokens - 1))])
