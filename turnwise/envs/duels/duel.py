"""Two seats play a game whose solution is known. A game file contains only its rules, as a tree.

The winner of a game earns up to 1, and the other loses as much. A reply that is not a legal move in `\\boxed{...}`
loses the game at once.
"""

from __future__ import annotations

import random
from typing import Any, ClassVar, Literal

from turnwise.envs.base import Env, Info, Reset, Step
from turnwise.envs.duels.game_tree import GameTree, Rotated, reading
from turnwise.envs.games.game import box, last_box

PLAYERS = ("player_0", "player_1")


class Duel(Env):
    """The environment that plays any `GameTree`: the seat that acts reads what it may know, and nothing else.

    `rotate` lets chance decide which seat begins. `expert` is who `oracle()` is: optimal, mixed where the solution is
    mixed; or random, a start for self-play that knows the rules alone.
    """

    seats = PLAYERS
    reward_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __init__(
        self,
        tree: GameTree[Any],
        *,
        rotate: bool = False,
        expert: Literal["optimal", "random"] = "optimal",
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        if expert not in ("optimal", "random"):
            raise ValueError(f"expert is {expert!r}; choose optimal or random")
        self.tree: GameTree[Any] = Rotated(tree) if rotate else tree
        self.expert = expert
        self.over = True

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Deal; only the seed decides how, `task` is not used."""
        super().reset(seed=seed)
        states, chances = zip(*self.tree.deals(), strict=True)
        self.state = self.rng.choices(states, chances)[0]
        self.luck = self.rng.getrandbits(64)  # of the expert, which may not draw from the generator
        self.turns, self.over = [0, 0], False
        return self._observation(), self._info()

    def step(self, action: str) -> Step:
        """Play the last `\\boxed{...}` of the action."""
        if self.over:
            raise ValueError("no game is running; call reset() first")
        seat, move = self._seat, last_box(action)
        if move is None or move not in self.tree.moves(self.state):
            self.over = True
            text = f"{PLAYERS[seat]} did not answer with a legal move in \\boxed{{...}} and loses."
            return text, -1.0, True, False, _outcome(1.0 if seat else -1.0, valid=False)
        self.state = self.tree.play(self.state, move)
        self.turns[seat] += 1
        self.over = self.tree.mover(self.state) is None
        if not self.over:
            return self._observation(), 0.0, False, False, self._info()
        info = _outcome(self.tree.payoff(self.state), valid=True)
        return self.tree.ending(self.state), info["rewards"][PLAYERS[seat]], True, False, info

    def sample_random_action(self) -> str:
        """Any legal move."""
        return box(self.rng.choice(self.tree.moves(self.state)))

    def oracle(self) -> str:
        """The expert's move; a mixed one is drawn from the episode's own luck."""
        moves = self.tree.moves(self.state)
        chances = self.tree.solution(self.state) if self.expert == "optimal" else [1.0] * len(moves)
        drawn = random.Random(f"{self.luck}:{self._seat}:{self.turns}")
        return box(drawn.choices(moves, chances)[0])

    @property
    def _seat(self) -> int:
        seat = self.tree.mover(self.state)
        assert seat is not None
        return seat

    def _observation(self) -> str:
        return reading(self.tree, self.state, self._seat, first=self.turns[self._seat] == 0)

    def _info(self) -> Info:
        """What the seat that acts may know; the other's move is not in it."""
        seat = self._seat
        key = f"{PLAYERS[seat]}: {self.tree.sees(self.state, seat)}"
        return {"seat": PLAYERS[seat], "valid": True, "state_key": key, "cut_reward": -1.0}


def _outcome(first: float, *, valid: bool) -> Info:
    """The end of a game in which the first seat earns `first`."""
    rewards = dict(zip(PLAYERS, (first, -first), strict=True))
    return {"valid": valid, "rewards": rewards, "success": {seat: reward > 0 for seat, reward in rewards.items()}}
