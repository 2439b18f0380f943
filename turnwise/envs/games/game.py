"""What all games share: the boxed action, the turn limit and the reward. A game file contains only its rules.

Rewards are GEM's: 1 for a win, -0.1 (and the end) for a reply without a readable action, 0 for everything else. With
`dense=True` the same 1 is paid in parts, as progress reaches a new best; a win pays what is left of it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from turnwise.envs.base import Env, Info, Reset, Step

SUCCESS, FORMAT_ERROR = 1.0, -0.1
FORMAT_ERROR_TEXT = "No readable action in \\boxed{...}. The game is over."

MAX_CONTENT = 64
"""Maximum length of an action; longer ones mean nothing to a game, and parsers never see a megabyte."""

MAX_DRAWS = 1_000
"""Instances drawn before a game's settings count as unsolvable; the registered ones need at most a few dozen."""

DIRECTIONS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
"""Steps as (rows down, columns right)."""

_BOX = re.compile(r"\\boxed\{([^{}]*)\}")
_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")  # bounded: int() of a hostile 100,000-digit number is slow or an error


@dataclass(frozen=True, kw_only=True)
class Move:
    """What one action did: `Move(text="Higher than 12.")`, or `Move(text="That is a wall.", valid=False)`."""

    text: str
    valid: bool = True
    won: bool = False
    lost: bool = False


class Rules(Protocol):
    """One game: its position and legal actions. It does not handle boxes, turn limits or rewards."""

    def deal(self, rng: random.Random) -> str:
        """Start a new game; the text states the rules, the form of an action and the first position."""
        ...

    def parse(self, text: str) -> Any | None:
        """The action that a box's content stands for; None if it cannot be read as one (0 is an action)."""
        ...

    def play(self, action: Any) -> Move:
        """Apply a parsed action, which may still be against the rules."""
        ...

    def state_key(self) -> str:
        """The visible position: equal for the player exactly when the strings are equal."""
        ...

    def progress(self) -> float:
        """How far the player has come, from 0 to 1 (won), for the dense reward."""
        ...

    def random_action(self, rng: random.Random) -> str:
        """The content of a well-formed random action."""
        ...

    def oracle(self) -> str:
        """The content of the expert's action in this position."""
        ...


class Game(Env):
    """The environment that plays any `Rules` with boxed actions under a turn limit.

    `progress_weight` is the share of the dense reward that a lost game can earn; `progress_paid` says whether it is
    paid as it is made or, for games where only the last position counts, when the turn limit cuts the game.
    """

    reward_range: ClassVar[tuple[float, float]] = (FORMAT_ERROR, SUCCESS)

    def __init__(
        self,
        rules: Rules,
        *,
        max_turns: int,
        dense: bool = False,
        split: str = "train",
        progress_weight: float = 1.0,
        progress_paid: Literal["each turn", "at limit"] = "each turn",
    ) -> None:
        super().__init__(split=split)
        if max_turns < 1:
            raise ValueError(f"max_turns is {max_turns}; a game needs at least one turn")
        self.rules = rules
        self.max_turns = max_turns
        self.dense = dense
        self.progress_weight = progress_weight
        self.progress_paid = progress_paid
        self.over = True

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Deal a new game; only the seed decides which one, `task` is not used."""
        super().reset(seed=seed)
        opening = self.rules.deal(self.rng)
        self.turn, self.over = 0, False
        self.start, self.paid = self.rules.progress(), 0.0
        return f"{opening}\n{self._turns_left()}", {"state_key": self.rules.state_key()}

    def step(self, action: str) -> Step:
        """Play the last `\\boxed{...}` of the action."""
        if self.over:
            raise ValueError("no game is running; call reset() first")
        content = last_box(action)
        parsed = None if content is None else self.rules.parse(content)
        self.turn += 1
        if parsed is None:
            self.over = True
            return FORMAT_ERROR_TEXT, FORMAT_ERROR, True, False, self._info(parsed, valid=False, won=False)
        move = self.rules.play(parsed)
        terminated = move.won or move.lost
        truncated = not terminated and self.turn == self.max_turns
        self.over = terminated or truncated
        observation = move.text if terminated else f"{move.text}\n{self._turns_left()}"
        info = self._info(parsed, valid=move.valid, won=move.won)
        return observation, self._reward(move, truncated), terminated, truncated, info

    def sample_random_action(self) -> str:
        """A boxed random action for the current position."""
        return box(self.rules.random_action(self.rng))

    def oracle(self) -> str:
        """The boxed action of the game's expert."""
        return box(self.rules.oracle())

    def _reward(self, move: Move, truncated: bool) -> float:
        if move.won:
            return SUCCESS - self.paid
        due = truncated or self.progress_paid == "each turn"
        if not (self.dense and move.valid and due):
            return 0.0
        share = (self.rules.progress() - self.start) / (1 - self.start)
        gain = max(0.0, self.progress_weight * share - self.paid)
        self.paid += gain
        return gain

    def _info(self, parsed: Any, *, valid: bool, won: bool) -> Info:
        info: Info = {"valid": valid, "state_key": self.rules.state_key(), "parsed_action": parsed}
        return {**info, "success": won} if self.over else info

    def _turns_left(self) -> str:
        return f"Turns left: {self.max_turns - self.turn}."


def draw_until(accepted: Callable[[], bool], hint: str) -> None:
    """Draw instances until one is accepted; after `MAX_DRAWS` draws the settings must be wrong."""
    if not any(accepted() for _ in range(MAX_DRAWS)):
        raise ValueError(f"no solvable game in {MAX_DRAWS} draws; {hint}")


def box(content: str) -> str:
    """The action text for a content: `box("7")` is `\\boxed{7}`."""
    return f"\\boxed{{{content}}}"


def last_box(text: str) -> str | None:
    """The content of the last closed box (the innermost if nested); None without a box or if it is too long."""
    boxes = _BOX.findall(text)
    return boxes[-1].strip() if boxes and len(boxes[-1]) <= MAX_CONTENT else None


def integer(text: str) -> int | None:
    """The text as a plain ASCII integer, otherwise None: `integer("0")` is 0, not None."""
    return int(text) if _INTEGER.fullmatch(text) else None


def integers(text: str, count: int) -> tuple[int, ...] | None:
    """Exactly `count` integers separated by spaces or commas, else None: `integers("2, 3", 2)` is `(2, 3)`."""
    parts = text.replace(",", " ").split(maxsplit=count)
    numbers = tuple(number for number in map(integer, parts) if number is not None)
    return numbers if len(numbers) == len(parts) == count else None


def direction(text: str) -> str | None:
    """The direction that the text names, in any case, else None: `direction("Up")` is `"up"`."""
    return text.lower() if text.lower() in DIRECTIONS else None


def grid(cells: Sequence[str], width: int) -> str:
    """Cells as lines of `width`, aligned: `grid(["1", "2", ".", "4"], 2)` is `"1 2\\n. 4"`."""
    longest = max(map(len, cells))
    padded = [cell.rjust(longest) for cell in cells]
    return "\n".join(" ".join(padded[start : start + width]) for start in range(0, len(cells), width))
