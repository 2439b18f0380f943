"""METEOR (Lavie and Agarwal, 2007): how much two texts have in common, in words, their stems and their order.

Words are matched one to one, first as they are, then by their stems (no synonyms: they would need a dictionary). With m
matches, precision P = m / words of the text and recall R = m / words of the reference:

    METEOR = P R / (0.9 P + 0.1 R) · (1 − ½ (chunks / m)³)

Chunks are runs of matched words that are adjacent and in the same order in both texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from turnwise.evaluate.porter import stem

_ALPHA, _BETA, _GAMMA = 0.9, 3.0, 0.5
_TOKEN = re.compile(r"\w+|[^\w\s]")

_Place = tuple[int, str]
_Match = tuple[int, int]


def split_words(text: str) -> list[str]:
    """Words and punctuation marks, in lower case: `split_words("It's fun.")` is `["it", "'", "s", "fun", "."]`."""
    return _TOKEN.findall(text.lower())


def meteor(words: Sequence[str], reference: Sequence[str]) -> float:
    """The METEOR score of a text against one reference, both as words in lower case; 0 if they share none."""
    matches = _align(words, reference)
    if not matches:
        return 0.0
    precision, recall = len(matches) / len(words), len(matches) / len(reference)
    mean = precision * recall / (_ALPHA * precision + (1 - _ALPHA) * recall)
    return mean * (1 - _GAMMA * (_count_chunks(matches) / len(matches)) ** _BETA)


def _align(words: Sequence[str], reference: Sequence[str]) -> list[_Match]:
    exact, left, left_there = _match(list(enumerate(words)), list(enumerate(reference)), str)
    stems, _, _ = _match(left, left_there, stem)
    return sorted(exact + stems)


def _match(
    here: list[_Place], there: list[_Place], form: Callable[[str], str]
) -> tuple[list[_Match], list[_Place], list[_Place]]:
    """Pairs of places with equal forms, and what is left on both sides.

    From the end backwards each word takes the last one that is free, as nltk does: simple, and nearly always the
    alignment with the fewest crossings.
    """
    free: dict[str, list[int]] = {}
    for place, word in there:
        free.setdefault(form(word), []).append(place)
    matches, left = list[_Match](), list[_Place]()
    for place, word in reversed(here):
        partners = free.get(form(word))
        if partners:
            matches.append((place, partners.pop()))
        else:
            left.append((place, word))
    taken = {partner for _, partner in matches}
    return matches, left[::-1], [(place, word) for place, word in there if place not in taken]


def _count_chunks(matches: Sequence[_Match]) -> int:
    follows = [(b - a, y - x) == (1, 1) for (a, x), (b, y) in pairwise(matches)]
    return 1 + follows.count(False)
