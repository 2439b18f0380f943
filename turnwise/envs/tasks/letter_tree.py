"""`letters/tree`: one question with several right answers. How many of them does a policy still give?"""

from __future__ import annotations

from typing import Any

from turnwise.envs.base import Env, Reset, Step

LETTERS = "abcd"
PATHS = ("a c d", "b d c", "c a b", "d b a")
"""The right answers: each letter begins one."""


class LetterTree(Env):
    """Say three letters of four; 4 of the 64 answers are right: `make("letters/tree")`.

        get answer  →  c a b   1
        get answer  →  c a c   0

    The miniature of ROVER (2509.24981): to the uniformly random policy any first letter is worth 1/16, a good second
    one 1/4 and a good third one 1. Every question is the same, and the expert knows all answers.
    """

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Ask; the seed decides only which right answer the expert gives, and `task` is not used."""
        super().reset(seed=seed)
        self.path = self.rng.choice(PATHS)
        return "get answer", {}

    def step(self, action: str) -> Step:
        """Grade the answer."""
        letters = action.split()
        right = " ".join(letters) in PATHS
        valid = len(letters) == 3 and set(letters) <= set(LETTERS)
        return "", float(right), True, False, {"success": right, "valid": valid}

    def sample_random_action(self) -> str:
        """Any three letters."""
        return " ".join(self.rng.choices(LETTERS, k=3))

    def oracle(self) -> str:
        """One of the right answers, each as often as the others."""
        return self.path
