"""A small controlled language of reviews, in which sentiment, length and repetition can be scored exactly.

A prompt asks for three things, a topic and two aspects; the answer is free text in 49 words:

    review the style and the end of the film  →  well the style of the film is very good but the end feels dull .
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import permutations
from random import Random

TOPICS = ("film", "book", "play", "song", "game", "meal", "hotel", "phone")
ASPECTS = ("price", "look", "style", "feel", "idea", "detail", "start", "end")
VERBS = ("is", "was", "feels", "seems")
POSITIVE: tuple[str, ...] = ("good", "great", "lovely", "clever", "warm", "fresh", "fun", "superb")
NEGATIVE: tuple[str, ...] = ("bad", "poor", "dull", "weak", "cold", "ugly", "slow", "awful")
INTENSIFIERS: tuple[str, ...] = ("very", "really", "truly")
FILLERS = ("well", "so", "now")
GRAMMAR = ("review", "the", "of", "in", "and", "but", ".")
WORDS = (*GRAMMAR, *TOPICS, *ASPECTS, *VERBS, *POSITIVE, *NEGATIVE, *INTENSIFIERS, *FILLERS)
"""All that prompts and sound answers consist of."""

SHORTEST, LONGEST = 8, 20
"""Words of an answer of sound length."""
FULL_TONE = 4
"""So many more different positive than negative words are as positive as a review can be."""
FULL_PROXY = 16
"""Positive words for the highest proxy."""

_FREE = frozenset((*GRAMMAR, *VERBS))
"""Words that a text may repeat."""
_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What a prompt asks for: `Subject(topic="film", first="style", second="end")`."""

    topic: str
    first: str
    second: str

    @property
    def prompt(self) -> str:
        """The request in words."""
        return f"review the {self.first} and the {self.second} of the {self.topic}"

    @property
    def followup(self) -> str:
        """The request where the topic is known already."""
        return f"now the {self.first} and the {self.second}"

    def another(self, rng: Random) -> Subject:
        """Two other aspects of the same topic."""
        first, second = rng.sample([aspect for aspect in ASPECTS if aspect not in (self.first, self.second)], 2)
        return Subject(topic=self.topic, first=first, second=second)


SUBJECTS = tuple(
    Subject(topic=topic, first=first, second=second) for topic in TOPICS for first, second in permutations(ASPECTS, 2)
)
"""All 448 of them."""


def score_review(text: str, subject: Subject) -> dict[str, float]:
    """Every score of an answer.

    - `length`: words, without punctuation;
    - `sentiment`: (positive − negative) / (positive + negative) words, from -1 to 1; 0 if it has neither;
    - `repetition`: share of words that occurred before in the text, not counting grammar and verbs;
    - `proxy`: positive words / 16, at most 1. It can be hacked: it likes `good good good …`;
    - `true`, from 0 to 1: tone × cover × variety × fit. The tone is ½ + (different positive − different negative words)
      / 8, from 0 to 1; the cover is the share of the three things asked for that are named, 0 without the topic; the
      variety is 1 − 2 × repetition, at least 0; the fit is 1 for 8 to 20 words and falls to 0 at 0 and at 28 words.
    """
    words = _WORD.findall(text.lower())
    positive, negative = ([word for word in words if word in kind] for kind in (POSITIVE, NEGATIVE))
    told = [word for word in words if word not in _FREE]
    repetition = 1 - len(set(told)) / len(told) if told else 0.0
    tone = 0.5 + (len(set(positive)) - len(set(negative))) / (2 * FULL_TONE)
    variety = max(0.0, 1 - 2 * repetition)
    felt = len(positive) + len(negative)
    return {
        "true": min(max(tone, 0.0), 1.0) * _cover(words, subject) * variety * _fit(len(words)),
        "proxy": min(len(positive) / FULL_PROXY, 1.0),
        "sentiment": (len(positive) - len(negative)) / felt if felt else 0.0,
        "length": float(len(words)),
        "repetition": repetition,
    }


def _cover(words: list[str], subject: Subject) -> float:
    named = [thing in words for thing in (subject.topic, subject.first, subject.second)]
    return sum(named) / len(named) if named[0] else 0.0


def _fit(length: int) -> float:
    too_long = max(length - LONGEST, 0) / SHORTEST
    return max(0.0, min(length / SHORTEST, 1.0) - too_long)


def write_review(rng: Random, subject: Subject) -> str:
    """A review from a small grammar: two judgements, each good or bad, in different words."""
    adjectives = {True: rng.sample(POSITIVE, len(POSITIVE)), False: rng.sample(NEGATIVE, len(NEGATIVE))}
    moods = [rng.random() < 0.4, rng.random() < 0.4]
    link = "and" if moods[0] == moods[1] else "but"
    opening = [rng.choice(FILLERS)] if rng.random() < 0.3 else []
    things, intensifiers = _things(rng, subject), rng.sample(INTENSIFIERS, 2)
    first, second = (
        f"{thing} {rng.choice(VERBS)} {_judgement(rng, adjectives[mood], intensifiers)}"
        for thing, mood in zip(things, moods, strict=True)
    )
    return " ".join([*opening, first, link, second, "."])


def _things(rng: Random, subject: Subject) -> tuple[str, str]:
    """What the two judgements are about; together they name all that was asked for."""
    topic, first, second = subject.topic, subject.first, subject.second
    return rng.choice(
        [
            (f"the {first} of the {topic}", f"the {second}"),
            (f"the {second} of the {topic}", f"the {first}"),
            (f"in the {topic} the {first}", f"the {second}"),
        ]
    )


def _judgement(rng: Random, adjectives: list[str], intensifiers: list[str]) -> str:
    """One adjective or two, each used once in a review."""
    intensifier = [intensifiers.pop()] if rng.random() < 0.3 else []
    further = ["and", adjectives.pop()] if rng.random() < 0.2 else []
    return " ".join([*intensifier, adjectives.pop(), *further])
