"""Gymnasium's toy-text worlds in words: rules, action names, descriptions of states."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gymnasium.envs.toy_text.frozen_lake import generate_random_map

CLIFF_ROWS, CLIFF_COLUMNS = 4, 12
TAXI_STOPS = ("red (row 0, column 0)", "green (row 0, column 4)", "yellow (row 4, column 0)", "blue (row 4, column 3)")


@dataclass(frozen=True, kw_only=True)
class Words:
    """One world in text; `actions` are named in the order of their numbers."""

    rules: str
    actions: tuple[str, ...]
    describe: Callable[[Any, Any], str]
    """The unwrapped environment and its state, in words."""
    goal_reward: float
    """An episode that ends with at least this reward succeeded."""
    plannable: bool = True
    """Whether the world publishes its transitions, from which an expert can plan."""
    arguments: Callable[[random.Random], dict[str, Any]] = lambda rng: {}
    """Arguments of `gymnasium.make`, drawn for each episode."""


def _random_lake(size: int) -> Callable[[random.Random], dict[str, Any]]:
    return lambda rng: {"desc": generate_random_map(size=size, seed=rng.getrandbits(31)), "is_slippery": False}


def _lake(world: Any, state: int) -> str:
    rows = [[cell.decode() for cell in row] for row in world.desc]
    rows[state // world.ncol][state % world.ncol] = "P"
    return "\n".join(" ".join(row) for row in rows)


def _cliff(world: Any, state: int) -> str:
    rows = [["."] * CLIFF_COLUMNS for _ in range(CLIFF_ROWS)]
    rows[-1] = [*".", *"C" * (CLIFF_COLUMNS - 2), "G"]
    rows[state // CLIFF_COLUMNS][state % CLIFF_COLUMNS] = "P"
    return "\n".join(" ".join(row) for row in rows)


def _taxi(world: Any, state: int) -> str:
    row, column, passenger, destination = world.decode(state)
    where = "in the taxi" if passenger == len(TAXI_STOPS) else f"waiting at {TAXI_STOPS[passenger]}"
    streets = "\n".join("".join(character.decode() for character in line) for line in world.desc)
    return (
        f"{streets}\nThe taxi is at row {row}, column {column}. The passenger is {where}"
        f" and wants to go to {TAXI_STOPS[destination]}."
    )


def _blackjack(world: Any, state: tuple[int, int, int]) -> str:
    total, dealer, usable_ace = (int(value) for value in state)
    ace = "with" if usable_ace else "without"
    return f"Your cards sum to {total}, {ace} an ace that counts 11. The dealer shows {dealer}."


_LAKE = "Walk over the frozen lake from S to G without stepping into a hole. P: you, F: ice, H: hole, G: goal."
_WAYS = ("left", "down", "right", "up")

WORDS = {
    "FrozenLake-v1": Words(rules=_LAKE, actions=_WAYS, describe=_lake, goal_reward=1.0, arguments=_random_lake(4)),
    "FrozenLake8x8-v1": Words(rules=_LAKE, actions=_WAYS, describe=_lake, goal_reward=1.0, arguments=_random_lake(8)),
    "CliffWalking-v1": Words(
        rules="Walk to the goal G; each step costs 1, the cliff C costs 100 and puts you back. P: you.",
        actions=("up", "right", "down", "left"),
        describe=_cliff,
        goal_reward=-1.0,
        arguments=lambda rng: {"max_episode_steps": 100},
    ),
    "Taxi-v4": Words(
        rules="Fetch the passenger and drop them off at their destination. Each step costs 1, a wrong pickup or"
        " dropoff 10; the ride pays 20. Walls are drawn as |, open streets as :.",
        actions=("south", "north", "east", "west", "pickup", "dropoff"),
        describe=_taxi,
        goal_reward=20.0,
    ),
    "Blackjack-v1": Words(
        rules="Come closer to 21 than the dealer without going over.",
        actions=("stick", "hit"),
        describe=_blackjack,
        goal_reward=1.0,
        plannable=False,
    ),
}
"""The worlds behind `gym/{name}`."""
