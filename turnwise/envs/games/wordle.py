"""Wordle: find a five-letter word from the letters that are right, elsewhere or absent."""

from __future__ import annotations

import random
import re
from functools import lru_cache

from turnwise.envs.games.game import Game, Move
from turnwise.envs.games.word_list import words

LENGTH = 5
_LETTERS = re.compile(r"[a-z]{1,20}")


class Wordle:
    """A hidden common word; any five letters may be guessed. The expert knows the word list, not the word."""

    def deal(self, rng: random.Random) -> str:
        """Draw the hidden word."""
        self.word = rng.choice(words(LENGTH))
        self.answers: dict[str, str] = {}
        self.greens = 0
        return (
            "Wordle: find my five-letter word. For each letter of a guess I answer G (right place), Y (elsewhere in "
            "it) or - (not in it). Answer like this: \\boxed{stone}"
        )

    def parse(self, text: str) -> str | None:
        """A row of letters, in any case."""
        return text.lower() if _LETTERS.fullmatch(text.lower()) else None

    def play(self, action: str) -> Move:
        """Compare the guess with the hidden word."""
        if len(action) != LENGTH:
            return Move(text=f"A guess has {LENGTH} letters.", valid=False)
        answer = self.answers[action] = compare(action, self.word)
        self.greens = answer.count("G")
        return Move(text=f"{action}: {answer}", won=action == self.word)

    def state_key(self) -> str:
        """All answers so far, in any order."""
        return "answers" + "".join(f" {guess}:{answer}" for guess, answer in sorted(self.answers.items()))

    def progress(self) -> float:
        """The share of letters in the right place in the last guess."""
        return self.greens / LENGTH

    def random_action(self, rng: random.Random) -> str:
        """Any word of the list."""
        return rng.choice(words(LENGTH))

    def oracle(self) -> str:
        """The guess that splits the words still possible into the most answers."""
        return sharpest_guess(possible_words(tuple(self.answers.items())))


def compare(guess: str, word: str) -> str:
    """The answer to a guess: `compare("eerie", "where")` is `"Y-Y-G"`; each letter of the word answers once."""
    answer = ["G" if mine == theirs else "-" for mine, theirs in zip(guess, word, strict=True)]
    unmatched = [theirs for mine, theirs in zip(guess, word, strict=True) if mine != theirs]
    for place, letter in enumerate(guess):
        if answer[place] == "-" and letter in unmatched:
            unmatched.remove(letter)
            answer[place] = "Y"
    return "".join(answer)


@lru_cache(maxsize=4096)
def possible_words(answers: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """The listed words that match all these answers; cached, because games often share their first ones."""
    if not answers:
        return words(LENGTH)
    guess, answer = answers[-1]
    return tuple(word for word in possible_words(answers[:-1]) if compare(guess, word) == answer)


@lru_cache(maxsize=4096)
def sharpest_guess(possible: tuple[str, ...]) -> str:
    """The possible word with the most different answers over the possible words, or over a hundred of them."""
    sample = possible[:: 1 + len(possible) // 100]
    return max(possible, key=lambda guess: len({compare(guess, word) for word in sample}))


def wordle(*, max_turns: int, dense: bool = False, split: str = "train") -> Game:
    """Find a hidden five-letter word."""
    return Game(Wordle(), max_turns=max_turns, dense=dense, split=split, progress_weight=0.5)
