"""Three answers, each of which is preferred to the next: no answer is best, and no score can say so."""

from __future__ import annotations

from typing import Any

from turnwise.envs.base import Env, Reset, Step

ANSWERS = ("a", "b", "c")


class CyclicGame(Env):
    """Say one of three letters, all known to `pico`. Nothing is rewarded: a judge says which of two letters it prefers.

    The share of each letter is reported as a score, so that a run's mean over steps is the average policy.
    """

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """The same prompt every time."""
        super().reset(seed=seed)
        self.letter = self.rng.choice(ANSWERS)
        return "from", {}

    def step(self, action: str) -> Step:
        """One turn is an episode."""
        said = action.strip()
        scores = {letter: float(said == letter) for letter in ANSWERS}
        valid = said in ANSWERS
        return "", 0.0, True, False, {"success": valid, "valid": valid, "scores": scores}

    def sample_random_action(self) -> str:
        """Any of the letters."""
        return self.rng.choice(ANSWERS)

    def oracle(self) -> str:
        """The letter that was drawn at reset: an expert that says all of them equally often."""
        return self.letter
