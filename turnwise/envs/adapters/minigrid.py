"""MiniGrid and BabyAI levels in words: `make("minigrid/BabyAI-GoToRedBall-v0")`."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import Any

import gymnasium

# Importing any part of minigrid registers its levels with Gymnasium.
from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, STATE_TO_IDX
from minigrid.utils.baby_ai_bot import BabyAIBot, DisappearedBoxError

from turnwise.envs.adapters.names import check_name, last_named
from turnwise.envs.base import Env, Reset, Step

LEVELS = [level for level in gymnasium.registry if level.startswith(("MiniGrid-", "BabyAI-"))]
ACTIONS = ("left", "right", "forward", "pickup", "drop", "toggle")
"""In the order of MiniGrid's own numbers."""
RULES = (
    "You stand in a grid of rooms and see the cells in front of you. left and right turn you, forward moves one step,"
    " pickup and drop handle the object before you, toggle opens or closes what is before you."
)
BEYOND_THE_BOT = ("KeyInBox", "Carrying", "UnlockToUnlock", "OrderN2Debug", "OrderN4Debug")
"""Levels that the bot fails (something in a box or in hand, an order it must not break) or plans for endlessly."""
_DOOR_STATES = {index: state for state, index in STATE_TO_IDX.items()}
_UNREMARKABLE = frozenset({"unseen", "empty", "wall", "floor", "agent"})


class MiniGrid(Env):
    """A level described as the list of what the agent sees; the last action word of a turn counts."""

    def __init__(self, *, name: str, split: str = "train") -> None:
        super().__init__(split=split)
        check_name("MiniGrid level", name, LEVELS)
        self.name = name
        self.world: Any = gymnasium.make(name)

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Build the level."""
        super().reset(seed=seed)
        # BabyAI prints every layout that it rejects.
        with redirect_stdout(io.StringIO()):
            self.view, _ = self.world.reset(seed=self.rng.getrandbits(31))
        self.turns = 0
        self.bot: Any = None
        rules = f"{RULES}\nActions: {', '.join(ACTIONS)}.\nMission: {self.view['mission']}."
        return f"{rules}\n\n{self._describe()}", {}

    def step(self, action: str) -> Step:
        """Take the last action that the text names; without one nothing moves, but the turn counts."""
        named = last_named(action, ACTIONS)
        reward, terminated = 0.0, False
        if named is not None:
            self.view, reward, terminated, _, _ = self.world.step(ACTIONS.index(named))
            self._tell_bot(ACTIONS.index(named))
        self.turns += 1
        truncated = not terminated and self.turns >= self.world.unwrapped.max_steps
        info = {"valid": named is not None, "success": bool(terminated and reward > 0), "parsed_action": named}
        hint = "" if named else f"Name one action: {', '.join(ACTIONS)}.\n\n"
        return hint + self._describe(), float(reward), bool(terminated), truncated, info

    def sample_random_action(self) -> str:
        """Any action word."""
        return self.rng.choice(ACTIONS)

    def oracle(self) -> str:
        """What BabyAI's own bot would do. It explores and remembers, so from here on it follows each step."""
        if self.bot is None:
            self.bot = BabyAIBot(self.world)
            self.advice = self.bot.replan()
        return ACTIONS[int(self.advice)]

    def has_oracle(self) -> bool:
        """The bot knows the BabyAI levels, but not all of them."""
        return self.name.startswith("BabyAI-") and not any(part in self.name for part in BEYOND_THE_BOT)

    def _tell_bot(self, action: int) -> None:
        if self.bot is None:
            return
        try:
            self.advice = self.bot.replan(action)
        except (AssertionError, DisappearedBoxError):
            # The step broke the bot's plan: it starts over the next time it is asked.
            self.bot = None

    def _describe(self) -> str:
        image = self.view["image"]
        center, bottom = image.shape[0] // 2, image.shape[1] - 1
        seen = [
            f"- {_object(*image[column, row])}, {_place(bottom - row, column - center)}"
            for row in range(bottom, -1, -1)
            for column in range(image.shape[0])
            if IDX_TO_OBJECT[int(image[column, row, 0])] not in _UNREMARKABLE and (column, row) != (center, bottom)
        ]
        return "\n".join(["You see:", *(seen or ["- nothing but floor and walls"]), self._surroundings()])

    def _surroundings(self) -> str:
        image = self.view["image"]
        center, bottom = image.shape[0] // 2, image.shape[1] - 1
        ahead = [IDX_TO_OBJECT[int(image[center, row, 0])] for row in range(bottom - 1, -1, -1)]
        free = next((steps for steps, kind in enumerate(ahead) if kind not in ("empty", "floor", "goal")), len(ahead))
        carried = self.world.unwrapped.carrying
        load = f"a {carried.color} {carried.type}" if carried else "nothing"
        return f"Free steps ahead: {free}. You carry {load}."


def _object(kind: int, color: int, state: int) -> str:
    name, tint = IDX_TO_OBJECT[int(kind)], IDX_TO_COLOR[int(color)]
    return f"a {_DOOR_STATES[int(state)]} {tint} door" if name == "door" else f"a {tint} {name}"


def _place(ahead: int, aside: int) -> str:
    side = "right" if aside > 0 else "left"
    parts = [f"{ahead} ahead"] * bool(ahead) + [f"{abs(aside)} to the {side}"] * bool(aside)
    return " and ".join(parts)
