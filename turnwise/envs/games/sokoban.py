"""Sokoban: push every box onto a goal. Levels are made by playing backwards from the solved position."""

from __future__ import annotations

import random

from turnwise.envs.games.game import DIRECTIONS, Game, Move, direction, draw_until
from turnwise.envs.games.sokoban_solver import Cell, beyond, reachable, solve

_SYMBOLS = {(False, False): "-", (False, True): ".", (True, False): "$", (True, True): "*"}


class Sokoban:
    """A walled `size` x `size` room with `boxes` boxes.

    The expert replans whenever the player leaves its plan; in a dead end it just makes a legal move.
    """

    def __init__(self, *, size: int, boxes: int, pulls: int, longest: int) -> None:
        if size < 5 or not 1 <= boxes <= size - 4 or pulls < boxes:
            raise ValueError(
                f"size {size}, boxes {boxes}, pulls {pulls}: choose 1 <= boxes <= size - 4, pulls >= boxes"
            )
        self.size = size
        self.box_count = boxes
        self.pulls = pulls
        self.longest = longest

    def deal(self, rng: random.Random) -> str:
        """Draw rooms until backward play takes every box off the goals, but not too far."""
        draw_until(lambda: self._draw(rng), "choose a larger room, fewer boxes or more pulls")
        return (
            "Sokoban: you are @ (+ on a goal). Go up, down, left or right and push every box $ onto a goal . (then "
            f"*); # is wall. Answer like this: \\boxed{{up}}\n{self.state_key()}"
        )

    def parse(self, text: str) -> str | None:
        """One of the four directions."""
        return direction(text)

    def play(self, action: str) -> Move:
        """Walk one step, pushing a box that stands there."""
        if action not in self._legal():
            return Move(text=f"You cannot go {action}.\n{self.state_key()}", valid=False)
        self.player = beyond(self.player, action)
        if self.player in self.boxes:
            self.boxes = self.boxes - {self.player} | {beyond(self.player, action)}
        self.plan = self.plan[1:] if self.plan and self.plan[0] == action else None
        if self.boxes == self.goals:
            return Move(text=f"{self.state_key()}\nSolved!", won=True)
        return Move(text=self.state_key())

    def state_key(self) -> str:
        """The room, one row a line."""
        span = range(self.size)
        return "\n".join("".join(self._symbol((row, column)) for column in span) for row in span)

    def progress(self) -> float:
        """The share of boxes on goals."""
        return len(self.boxes & self.goals) / self.box_count

    def random_action(self, rng: random.Random) -> str:
        """A step that is not blocked."""
        return rng.choice(self._legal())

    def oracle(self) -> str:
        """The next step of the plan, or of a new plan."""
        plan = self.plan or solve(self.floor, self.goals, self.boxes, self.player)
        return plan[0] if plan else self._legal()[0]

    def _draw(self, rng: random.Random) -> bool:
        inside = [(row, column) for row in range(1, self.size - 1) for column in range(1, self.size - 1)]
        walls = rng.sample(inside, self.size - 4)
        self.floor = frozenset(inside).difference(walls)
        *goals, self.player = rng.sample(sorted(self.floor), self.box_count + 1)
        self.goals = self.boxes = frozenset(goals)
        for _ in range(self.pulls):
            self._pull(rng)
        if self.boxes & self.goals:
            return False
        self.plan = solve(self.floor, self.goals, self.boxes, self.player, greed=2.0)
        return self.plan is not None and len(self.plan) <= self.longest

    def _pull(self, rng: random.Random) -> None:
        free = self.floor - self.boxes
        near = reachable(self.player, free)
        hauls = [
            (box, beyond(box, move), beyond(beyond(box, move), move))
            for box in sorted(self.boxes)
            for move in DIRECTIONS
        ]
        hauls = [(box, target, player) for box, target, player in hauls if target in near and player in free]
        if hauls:
            box, target, self.player = rng.choice(hauls)
            self.boxes = self.boxes - {box} | {target}

    def _legal(self) -> list[str]:
        free = self.floor - self.boxes
        ahead = {move: beyond(self.player, move) for move in DIRECTIONS}
        pushable = {move for move, cell in ahead.items() if cell in self.boxes and beyond(cell, move) in free}
        return [move for move, cell in ahead.items() if cell in free or move in pushable]

    def _symbol(self, cell: Cell) -> str:
        if cell == self.player:
            return "+" if cell in self.goals else "@"
        return _SYMBOLS[cell in self.boxes, cell in self.goals] if cell in self.floor else "#"


def sokoban(*, size: int, boxes: int, pulls: int, max_turns: int, dense: bool = False, split: str = "train") -> Game:
    """Push `boxes` boxes home in a `size` x `size` room, at most `pulls` pushes from solved."""
    rules = Sokoban(size=size, boxes=boxes, pulls=pulls, longest=max_turns)
    return Game(rules, max_turns=max_turns, dense=dense, split=split, progress_paid="at limit")
