"""Guess a number: each guess is answered by "higher" or "lower"."""

from __future__ import annotations

import random

from turnwise.envs.games.game import Game, Move, integer


class GuessNumber:
    """A hidden number from 1 to `high`; the expert halves what is left, which is optimal."""

    def __init__(self, *, high: int) -> None:
        if high < 2:
            raise ValueError(f"high is {high}; there is nothing to guess below 2")
        self.high = high

    def deal(self, rng: random.Random) -> str:
        """Draw the hidden number."""
        self.target = rng.randint(1, self.high)
        self.lowest, self.highest = 1, self.high  # what the answers leave open
        self.distance = self.high - 1  # of the last guess; no guess counts as farthest off
        return f"Guess my number, an integer from 1 to {self.high}. Answer like this: \\boxed{{{self.high // 3 + 1}}}"

    def parse(self, text: str) -> int | None:
        """Any integer, even out of range."""
        return integer(text)

    def play(self, action: int) -> Move:
        """Compare the guess with the hidden number."""
        if not 1 <= action <= self.high:
            return Move(text=f"Not a number from 1 to {self.high}.", valid=False)
        self.distance = abs(action - self.target)
        if action == self.target:
            self.lowest = self.highest = action
            return Move(text=f"{action} is right!", won=True)
        if action < self.target:
            self.lowest = max(self.lowest, action + 1)
            return Move(text=f"My number is higher than {action}.")
        self.highest = min(self.highest, action - 1)
        return Move(text=f"My number is lower than {action}.")

    def state_key(self) -> str:
        """The numbers still possible."""
        return f"{self.lowest}-{self.highest}"

    def progress(self) -> float:
        """GEM's closeness of the last guess: 1 - |guess - target| / range."""
        return 1 - self.distance / (self.high - 1)

    def random_action(self, rng: random.Random) -> str:
        """Any number of the range."""
        return str(rng.randint(1, self.high))

    def oracle(self) -> str:
        """The middle of what is still possible."""
        return str((self.lowest + self.highest) // 2)


def guess_number(*, high: int, max_turns: int, dense: bool = False, split: str = "train") -> Game:
    """Guess a number from 1 to `high`."""
    rules = GuessNumber(high=high)
    return Game(rules, max_turns=max_turns, dense=dense, split=split, progress_paid="at limit")
