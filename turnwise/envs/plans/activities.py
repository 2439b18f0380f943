"""What requests are about: the activities of 50 professions, or bare letters for small models."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

LETTERS = tuple("abcdefghi")
"""Names of actions for models whose tokens are words."""
NO_TOPIC = ""


@cache
def professions() -> dict[str, tuple[str, ...]]:
    """20 activities for each of 50 professions."""
    lines = (Path(__file__).parent / "activities.txt").read_text(encoding="utf-8").splitlines()
    parts = (line.partition(": ") for line in lines)
    return {profession: tuple(activities.split("; ")) for profession, _, activities in parts}


def draw_topic(rng: Random, *, other_than: str = NO_TOPIC) -> str:
    """One of the professions."""
    return rng.choice([profession for profession in professions() if profession != other_than])


def draw_names(rng: Random, topic: str, count: int) -> tuple[str, ...]:
    """Different names for the actions: activities of the topic, or letters without one."""
    known = professions()[topic] if topic else LETTERS
    if count > len(known):
        raise ValueError(f"{count} actions are too many; {topic or 'the alphabet'} has {len(known)}")
    names = rng.sample(known, count)
    return tuple(names if topic else sorted(names))
