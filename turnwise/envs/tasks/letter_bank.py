"""`letters/bank`: questions to be learned by heart, which a beginner knows unequally well."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from turnwise.envs.base import Env, Reset, Step
from turnwise.envs.tasks.lookup import KEYS, SYMBOLS

HARD = 0.1
"""Questions that the beginner answers less often than this are hard."""
_EASIEST, _HARDEST = 0.9, 0.02


def _bank() -> dict[str, tuple[str, float]]:
    """For each of the 64 keys its answer and the beginner's chance to know it, in equal ratios from 0.02 to 0.9."""
    rng = Random("letters/bank")
    ratio = (_EASIEST / _HARDEST) ** (1 / (len(KEYS) - 1))
    keys = rng.sample(KEYS, len(KEYS))
    return {key: (rng.choice(SYMBOLS), _HARDEST * ratio**place) for place, key in enumerate(keys)}


BANK = _bank()


class LetterBank(Env):
    """One letter of eight is the answer to each of 64 keys: `make("letters/bank")`.

        from c f  →  h   1

    Nothing tells the answer but trying, and nothing can be carried over to another key: all splits have the same keys.
    A beginner (`sample_random_action`) knows the answer with a chance that is the key's own, from 0.02 to 0.9, so that
    a policy that imitates it starts with tasks of every difficulty. The score `hard` is the success on keys
    that the beginner knows with a chance below 0.1. The miniature of DARS (2508.13755).
    """

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Ask for a key: `task`, or a random one."""
        super().reset(seed=seed)
        self.key = str(task) if task is not None else self.rng.choice(KEYS)
        if self.key not in BANK:
            raise ValueError(f"unknown task {task!r}; name a key such as {KEYS[0]!r}")
        return f"from {self.key}", {"task": self.key}

    def step(self, action: str) -> Step:
        """Grade the letter."""
        answer, chance = BANK[self.key]
        right = action.strip() == answer
        scores = {"hard": float(right)} if chance < HARD else {}
        return "", float(right), True, False, {"success": right, "valid": action.strip() in SYMBOLS, "scores": scores}

    def list_tasks(self) -> Sequence[str]:
        """All keys."""
        return KEYS

    def sample_random_action(self) -> str:
        """What a beginner says."""
        answer, chance = BANK[self.key]
        wrong = SYMBOLS.replace(answer, "")
        return answer if self.rng.random() < chance else self.rng.choice(wrong)

    def oracle(self) -> str:
        """The answer."""
        return BANK[self.key][0]
