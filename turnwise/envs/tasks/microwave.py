"""`actions/microwave`: open, put, close. The case study of POAD (2405.15821), with actions of unequal length."""

from __future__ import annotations

from typing import Any, ClassVar

from turnwise.envs.base import Env, Info, Reset, Step

ACTIONS = ("open the microwave", "put the food on the plate inside the microwave", "close the microwave")
"""In the right order."""
STATES = ("the microwave is closed", "the microwave is open", "the food is inside", "done")
_MOST_TURNS = 5


class Microwave(Env):
    """Heat the food in three actions: 1 for closing the microwave with the food inside, −1 if five turns do not do it.

    An action that the state does not allow changes nothing and uses up its turn.
    """

    reward_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __init__(self, *, split: str = "train") -> None:
        super().__init__(split=split)
        self.place, self.turn = 0, 0

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Start with the microwave closed; neither seed nor task changes anything."""
        super().reset(seed=seed)
        self.place, self.turn = 0, 0
        return STATES[0], {"state_key": STATES[0]}

    def step(self, action: str) -> Step:
        """Do one thing."""
        if self.place == len(ACTIONS) or self.turn == _MOST_TURNS:
            raise ValueError("no episode is running; call reset() first")
        said = " ".join(action.split())
        self.turn += 1
        self.place += said == ACTIONS[self.place]
        done = self.place == len(ACTIONS)
        over = done or self.turn == _MOST_TURNS
        info: Info = {"valid": said in ACTIONS, "state_key": STATES[self.place]}
        reward = 1.0 if done else -1.0 if over else 0.0
        return STATES[self.place], reward, over, False, {**info, "success": done} if over else info

    def sample_random_action(self) -> str:
        """Any of the actions."""
        return self.rng.choice(ACTIONS)

    def oracle(self) -> str:
        """The next action."""
        return ACTIONS[min(self.place, len(ACTIONS) - 1)]
