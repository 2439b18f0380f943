"""`ltc/teacher-student`: exercises, corrections, and the solutions of other exercises."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from turnwise.envs.base import Env, Info, Reset, Step
from turnwise.envs.tasks.lookup import ANSWER, KEYS

_STUDENT, _TEACHER = "student", "teacher"


class Teaching(Env):
    """A student learns by heart to which of 64 keys each of `keys` leads: `make("ltc/teacher-student", rounds=3)`.

        student  1 hops from c f                    →  answer a a
        teacher  1 hops from c f answer a a         →  wrong answer e b
        student  wrong answer e b 1 hops from h a   →  …

    The student hears the teacher word for word, then gets the next exercise, and earns a part of 1 for each right
    answer; it succeeds if its last one is right. The expert at the teacher's seat says whether the answer was right and
    gives the right one; before that it solves so many other `exercises`. Table `table` is the same in all splits and
    episodes, so that it can be learned; `table: null` draws another for every episode, so that only the form can be.
    """

    def __init__(
        self, *, rounds: int = 3, exercises: int = 0, keys: int = 64, table: int | None = 0, split: str = "train"
    ) -> None:
        super().__init__(split=split)
        if rounds < 1:
            raise ValueError(f"rounds is {rounds}; a lesson has at least one")
        if not 1 <= keys <= len(KEYS) or not 0 <= exercises <= keys:
            raise ValueError(f"keys is {keys} and exercises {exercises}; there are {len(KEYS)} keys to ask for")
        self.seats = (_STUDENT, _TEACHER)
        self.rounds, self.exercises, self.table = rounds, exercises, table
        self.asked = KEYS[:: len(KEYS) // keys][:keys]
        self.facts: Mapping[str, str] = {}
        self.key, self.attempt, self.done, self.right = "", "", rounds, False
        self.others: list[str] = []
        """The exercises that the teacher solves."""

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """The student reads the first exercise; only the seed decides which, `task` is not used."""
        super().reset(seed=seed)
        source = self.rng if self.table is None else Random(f"ltc:{self.table}")
        self.facts = dict(zip(KEYS, source.sample(KEYS, len(KEYS)), strict=True))
        self.key, self.attempt, self.done, self.right = self.rng.choice(self.asked), "", 0, False
        return _question(self.key), {"seat": _STUDENT}

    def step(self, action: str) -> Step:
        """Grade the student's answer, or let it hear the teacher."""
        if self.done == self.rounds:
            raise ValueError("no episode is running; call reset() first")
        if self.attempt:
            self.key, self.attempt = self.rng.choice(self.asked), ""
            heard = [action] if action.strip() else []
            return f"{action} {_question(self.key)}", 0.0, False, False, {"seat": _STUDENT, "heard": heard}
        self.right, self.done = action.strip() == self._solution(self.key), self.done + 1
        reward, over = self.right / self.rounds, self.done == self.rounds
        self.attempt, self.others = action or "?", self.rng.sample(self.asked, self.exercises)
        return f"{_question(self.key)} {action}", reward, over, False, self._graded(action, reward, over)

    def sample_random_action(self) -> str:
        """An answer to any exercise, or a teacher's words about it."""
        answer = f"{ANSWER} {self.rng.choice(KEYS)}"
        return f"{self.rng.choice(('right', 'wrong'))} {answer}" if self.attempt else answer

    def oracle(self) -> str:
        """The right answer; or other exercises with their solutions, the teacher's verdict, and the right answer."""
        if not self.attempt:
            return self._solution(self.key)
        solved = [f"{_question(other)} {self._solution(other)}" for other in self.others]
        return " ".join([*solved, "right" if self.right else "wrong", self._solution(self.key)])

    def _solution(self, key: str) -> str:
        return f"{ANSWER} {self.facts[key]}"

    def _graded(self, action: str, reward: float, over: bool) -> Info:
        word, _, key = action.strip().partition(" ")
        info: Info = {"rewards": {_STUDENT: reward}, "valid": word == ANSWER and key in KEYS}
        if over:
            return {**info, "success": dict.fromkeys(self.seats, self.right)}
        return {**info, "seat": _TEACHER, "heard": [action] if action.strip() else []}


def _question(key: str) -> str:
    return f"1 hops from {key}"
