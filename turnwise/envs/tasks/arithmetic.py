"""Arithmetic without data: the maths task that always works."""

from __future__ import annotations

from typing import Any

from turnwise.envs.base import Env, Reset, Step
from turnwise.envs.tasks.answers import INSTRUCTION, grade, split_of


class Arithmetic(Env):
    """One sum to work out: `make("math/arithmetic", terms=3, largest=20)`. No question is in two splits."""

    def __init__(self, *, terms: int = 2, largest: int = 99, split: str = "train") -> None:
        super().__init__(split=split)
        if terms < 2 or largest < 9:
            raise ValueError(f"arithmetic needs terms >= 2 and largest >= 9, not terms={terms} and largest={largest}")
        self.terms = terms
        self.largest = largest
        self.question, self.answer = "", ""

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Draw a sum, or take `task={"question": ..., "answer": ...}`."""
        super().reset(seed=seed)
        self.question, self.answer = (task["question"], task["answer"]) if task else self._draw()
        task = {"question": self.question, "answer": self.answer}
        return f"What is {self.question}? {INSTRUCTION}", {"task": task}

    def step(self, action: str) -> Step:
        """Grade the answer."""
        return grade(action, self.answer)

    def sample_random_action(self) -> str:
        """A guess within the range of the task."""
        return f"\\boxed{{{self.rng.randint(0, self.largest * self.terms)}}}"

    def oracle(self) -> str:
        """The right answer."""
        return f"\\boxed{{{self.answer}}}"

    def _draw(self) -> tuple[str, str]:
        while True:
            numbers = [self.rng.randint(0, self.largest) for _ in range(self.terms)]
            signs = [self.rng.choice("+-*") for _ in numbers[1:]]
            question = f"{numbers[0]}" + "".join(f" {s} {n}" for s, n in zip(signs, numbers[1:], strict=True))
            if split_of(question) == self.split:
                return question, str(_evaluate(numbers, signs))


def _evaluate(numbers: list[int], signs: list[str]) -> int:
    """Products first, then the sum."""
    summands = [numbers[0]]
    for sign, number in zip(signs, numbers[1:], strict=True):
        if sign == "*":
            summands[-1] *= number
        else:
            summands.append(number if sign == "+" else -number)
    return sum(summands)
