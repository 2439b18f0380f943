"""Mastermind: find a hidden code of different digits from counts of right and misplaced ones."""

from __future__ import annotations

import random
import re
from itertools import permutations

from turnwise.envs.games.game import Game, Move

_CODE = re.compile(r"[0-9](?:[\s,]*[0-9]){0,8}")


class Mastermind:
    """A hidden code of `length` different digits from 1 to `digits`; the expert tries the first consistent code."""

    def __init__(self, *, length: int, digits: int) -> None:
        if not 1 <= length <= digits <= 9:
            raise ValueError(f"length {length}, digits {digits}: choose 1 <= length <= digits <= 9")
        self.length = length
        self.digits = "123456789"[:digits]

    def deal(self, rng: random.Random) -> str:
        """Draw the hidden code."""
        self.code = self.random_action(rng)
        self.exact = 0
        self.answers: dict[str, tuple[int, int]] = {}
        return (
            f"Find my code of {self.length} different digits from 1 to {self.digits[-1]}. I answer how many digits are "
            f"in place and how many belong elsewhere. Answer like this: \\boxed{{{self.digits[: self.length]}}}"
        )

    def parse(self, text: str) -> str | None:
        """A row of digits, together or separated."""
        return re.sub(r"[\s,]", "", text) if _CODE.fullmatch(text) else None

    def play(self, action: str) -> Move:
        """Compare the guess with the hidden code."""
        if len(set(action)) != self.length or len(action) != self.length or not set(action) <= set(self.digits):
            return Move(text=f"A code is {self.length} different digits from 1 to {self.digits[-1]}.", valid=False)
        self.exact, elsewhere = self.answers[action] = compare(action, self.code)
        if action == self.code:
            return Move(text=f"{action} is right!", won=True)
        return Move(text=f"{action}: {self.exact} in place, {elsewhere} elsewhere.")

    def state_key(self) -> str:
        """All answers so far, in any order."""
        answers = (f" {guess}:{exact}+{elsewhere}" for guess, (exact, elsewhere) in sorted(self.answers.items()))
        return "answers" + "".join(answers)

    def progress(self) -> float:
        """The share of digits in place in the last guess."""
        return self.exact / self.length

    def random_action(self, rng: random.Random) -> str:
        """Any code."""
        return "".join(rng.sample(self.digits, self.length))

    def oracle(self) -> str:
        """The first code that would have given every answer so far."""
        codes = map("".join, permutations(self.digits, self.length))
        return next(
            code for code in codes if all(compare(guess, code) == answer for guess, answer in self.answers.items())
        )


def compare(guess: str, code: str) -> tuple[int, int]:
    """Digits in place and digits elsewhere: `compare("123", "132")` is `(1, 2)`."""
    exact = sum(mine == theirs for mine, theirs in zip(guess, code, strict=True))
    return exact, len(set(guess) & set(code)) - exact


def mastermind(*, length: int, digits: int, max_turns: int, dense: bool = False, split: str = "train") -> Game:
    """Find a code of `length` different digits from 1 to `digits`."""
    return Game(Mastermind(length=length, digits=digits), max_turns=max_turns, dense=dense, split=split)
