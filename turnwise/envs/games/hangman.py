"""Hangman: uncover a word letter by letter before the wrong guesses run out."""

from __future__ import annotations

import random
import re
from functools import lru_cache

from turnwise.envs.games.game import Game, Move
from turnwise.envs.games.word_list import words

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


class Hangman:
    """A hidden common word of one of `lengths` letters and `lives` wrong guesses; the expert knows the word list."""

    def __init__(self, *, lengths: tuple[int, ...], lives: int) -> None:
        if lives < 1 or not words(*lengths):
            raise ValueError(f"lengths {lengths}, lives {lives}: choose lengths from 4 to 8 and lives >= 1")
        self.lengths = lengths
        self.lives = lives

    def deal(self, rng: random.Random) -> str:
        """Draw the hidden word."""
        self.word = rng.choice(words(*self.lengths))
        self.tried = set[str]()
        return (
            f"Hangman: guess the letters of my word; {self.lives} wrong letters lose. Answer with one letter: "
            f"\\boxed{{e}}\n{self.state_key()}"
        )

    def parse(self, text: str) -> str | None:
        """One letter, in any case."""
        return text.lower() if re.fullmatch("[a-zA-Z]", text) else None

    def play(self, action: str) -> Move:
        """Uncover a letter or lose a life."""
        if action in self.tried:
            return Move(text=f"{action} was tried before.\n{self.state_key()}", valid=False)
        self.tried.add(action)
        if len(self._misses()) == self.lives:
            return Move(text=f"No lives left. The word was {self.word}.", lost=True)
        if set(self.word) <= self.tried:
            return Move(text=f"{self.word} is right!", won=True)
        return Move(text=self.state_key())

    def state_key(self) -> str:
        """The uncovered letters and the wrong ones."""
        return f"{' '.join(self._mask())} wrong: {' '.join(sorted(self._misses())) or 'none'}"

    def progress(self) -> float:
        """The share of uncovered places."""
        return 1 - self._mask().count("_") / len(self.word)

    def random_action(self, rng: random.Random) -> str:
        """A letter that was not tried."""
        return rng.choice([letter for letter in _ALPHABET if letter not in self.tried])

    def oracle(self) -> str:
        """The untried letter that the most words still possible contain."""
        return likeliest_letter(self._mask(), "".join(sorted(self.tried)))

    def _mask(self) -> str:
        return "".join(letter if letter in self.tried else "_" for letter in self.word)

    def _misses(self) -> set[str]:
        return self.tried.difference(self.word)


@lru_cache(maxsize=4096)
def likeliest_letter(mask: str, tried: str) -> str:
    """The letter in the most listed words that fit the mask; ties go to the first in the alphabet."""
    fitting = re.compile(mask.replace("_", f"[^{tried}]" if tried else "."))
    possible = [word for word in words(len(mask)) if fitting.fullmatch(word)]
    untried = [letter for letter in _ALPHABET if letter not in tried]
    return max(untried, key=lambda letter: sum(letter in word for word in possible))


def hangman(*, lengths: tuple[int, ...], lives: int, max_turns: int, dense: bool = False, split: str = "train") -> Game:
    """Uncover a word of one of `lengths` letters with `lives` wrong guesses."""
    rules = Hangman(lengths=lengths, lives=lives)
    return Game(rules, max_turns=max_turns, dense=dense, split=split, progress_weight=0.5)
