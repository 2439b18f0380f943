"""The word list of wordle and hangman: about 1,500 common English words of 4 to 8 letters."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def words(*lengths: int) -> tuple[str, ...]:
    """All listed words of these lengths, in alphabetical order: `words(5)[0]` is `"about"`."""
    listed = files("turnwise.envs.games").joinpath("words.txt").read_text("ascii").split()
    return tuple(word for word in listed if len(word) in lengths)
