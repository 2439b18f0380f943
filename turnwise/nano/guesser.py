"""A mixed demonstrator of `game/guess-number-easy`: half of its guesses follow the hints."""

from __future__ import annotations

import re
from random import Random

from turnwise.envs.games.game import Game, box
from turnwise.envs.registry import make

FOLLOWS_HINTS, CARELESS = 0.5, 0.03
_HIGH = 10
_ANSWER = re.compile(r"My number is (higher|lower) than (\d+)")


def play_guess_number(rng: Random, *, seed: int) -> tuple[list[tuple[str, str]], bool]:
    """One game: its (observation, action) pairs, and whether it was won."""
    env = make("game/guess-number-easy")
    assert isinstance(env, Game)
    observation, _ = env.reset(seed=seed)
    low, high = 1, _HIGH
    turns = list[tuple[str, str]]()
    while True:
        if told := _ANSWER.search(observation):
            low, high = (int(told[2]) + 1, high) if told[1] == "higher" else (low, int(told[2]) - 1)
        action = _guess(low, high, rng)
        turns.append((observation, action))
        observation, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return turns, bool(info["success"])


def _guess(low: int, high: int, rng: Random) -> str:
    follows = rng.random() < FOLLOWS_HINTS and low <= high  # careless guesses can leave an empty range
    number = str(rng.randint(low, high) if follows else rng.randint(1, _HIGH))
    return number if rng.random() < CARELESS else box(number)
