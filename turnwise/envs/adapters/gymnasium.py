"""Gymnasium's toy-text worlds in words: `make("gym/FrozenLake-v1")`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from turnwise.envs.adapters.gymnasium_words import WORDS
from turnwise.envs.adapters.names import check_name, last_named
from turnwise.envs.adapters.value_iteration import best_actions
from turnwise.envs.base import Env, Reset, Step


class Gymnasium(Env):
    """A Gymnasium world whose actions are words; the last action word of a turn counts.

    FrozenLake draws a new map for each episode and does not slip. `settings` go to `gymnasium.make` and override:
    `make("gym/FrozenLake-v1", settings={"is_slippery": True})`.
    """

    reward_range = (-100.0, 20.0)
    shared = frozenset({"words"})

    def __init__(self, *, name: str, settings: Mapping[str, Any] | None = None, split: str = "train") -> None:
        super().__init__(split=split)
        check_name("Gymnasium environment", name, WORDS)
        self.name, self.settings = name, dict(settings or {})
        self.words = WORDS[name]

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Start an episode in a new world."""
        super().reset(seed=seed)
        arguments = {**self.words.arguments(self.rng), **self.settings}
        self.world: Any = gymnasium.make(self.name, **arguments)
        self.state, _ = self.world.reset(seed=self.rng.getrandbits(31))
        self.turns = 0
        self.plan: list[int] | None = None
        described = self._describe()
        rules = f"{self.words.rules}\nActions: {', '.join(self.words.actions)}."
        return f"{rules}\n\n{described}", {"state_key": described}

    def step(self, action: str) -> Step:
        """Take the last action that the text names; without one nothing moves, but the turn counts."""
        named = last_named(action, self.words.actions)
        reward, terminated = 0.0, False
        if named is not None:
            self.state, reward, terminated, _, _ = self.world.step(self.words.actions.index(named))
        self.turns += 1
        described = self._describe()
        info = {
            "valid": named is not None,
            "success": terminated and reward >= self.words.goal_reward,
            "parsed_action": named,
            "state_key": described,
        }
        hint = "" if named else f"Name one action: {', '.join(self.words.actions)}.\n\n"
        return hint + described, float(reward), bool(terminated), not terminated and self._out_of_turns(), info

    def sample_random_action(self) -> str:
        """Any action word."""
        return self.rng.choice(self.words.actions)

    def oracle(self) -> str:
        """The best action by value iteration over the published transitions, planned once per episode."""
        if self.plan is None:
            self.plan = best_actions(self.world.unwrapped.P)
        return self.words.actions[self.plan[int(self.state)]]

    def has_oracle(self) -> bool:
        """True if the transitions are published."""
        return self.words.plannable

    def _out_of_turns(self) -> bool:
        limit = self.world.spec.max_episode_steps
        return limit is not None and self.turns >= limit

    def _describe(self) -> str:
        return self.words.describe(self.world.unwrapped, self.state)
