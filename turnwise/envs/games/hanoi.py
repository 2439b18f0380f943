"""Tower of Hanoi from any legal position: bring all disks to peg C."""

from __future__ import annotations

import random
import re

from turnwise.envs.games.game import Game, Move

_PEGS = "ABC"
_MOVE = re.compile(r"([A-Ca-c])\s*(?:,|to|->)?\s*([A-Ca-c])")


class Hanoi:
    """`disks` disks spread randomly over three pegs; the expert takes the shortest way from any position."""

    def __init__(self, *, disks: int) -> None:
        if disks < 1:
            raise ValueError(f"disks is {disks}; the tower needs at least one")
        self.disks = disks

    def deal(self, rng: random.Random) -> str:
        """Put every disk on a random peg; stacking by size makes any such choice legal."""
        solved = ["C"] * self.disks
        self.pegs = solved  # self.pegs[size - 1] is the peg of the disk of that size
        while self.pegs == solved:
            self.pegs = rng.choices(_PEGS, k=self.disks)
        return (
            f"Tower of Hanoi with disks 1 (smallest) to {self.disks}, pegs A, B, C. Move one top disk at a time, never "
            f"onto a smaller one; bring all to C. Answer like this: \\boxed{{A B}} (from A to B)\n{self.state_key()}"
        )

    def parse(self, text: str) -> str | None:
        """Two pegs: from, to."""
        found = _MOVE.fullmatch(text)
        return " ".join(found.groups()).upper() if found else None

    def play(self, action: str) -> Move:
        """Move the top disk of one peg to another."""
        source, target = action.split()
        disk, beneath = self._top(source), self._top(target)
        if disk >= beneath:  # an empty peg counts as a disk larger than all, so this also catches an empty source
            return Move(text=f"That move is not allowed.\n{self.state_key()}", valid=False)
        self.pegs[disk - 1] = target
        if self.progress() == 1:
            return Move(text=f"{self.state_key()}\nSolved!", won=True)
        return Move(text=self.state_key())

    def state_key(self) -> str:
        """The pegs with their disks, the lowest first."""
        return "\n".join(f"{peg}: {' '.join(map(str, reversed(self._on(peg))))}".rstrip() for peg in _PEGS)

    def progress(self) -> float:
        """How much of the longest possible way the player has done."""
        return 1 - self._way()[0] / (2**self.disks - 1)

    def random_action(self, rng: random.Random) -> str:
        """A legal move."""
        pairs = [(source, target) for source in _PEGS for target in _PEGS]
        return " ".join(rng.choice([pair for pair in pairs if self._top(pair[0]) < self._top(pair[1])]))

    def oracle(self) -> str:
        """The first move of the shortest way."""
        return self._way()[1]

    def _way(self) -> tuple[int, str]:
        """Moves left, and the first of them.

        A disk away from its goal waits until all smaller ones stand on the third peg, which takes 2^(size-1) - 1 moves
        from a tower; so each such disk stands for 2^(size-1) moves and makes that peg the goal of the smaller ones.
        """
        goal, distance, move = "C", 0, ""
        for size, peg in reversed(list(enumerate(self.pegs, start=1))):
            if peg != goal:
                distance += 2 ** (size - 1)
                move = f"{peg} {goal}"
                (goal,) = set(_PEGS) - {peg, goal}
        return distance, move

    def _on(self, peg: str) -> list[int]:
        return [size for size, place in enumerate(self.pegs, start=1) if place == peg]

    def _top(self, peg: str) -> int:
        return min(self._on(peg), default=self.disks + 1)


def hanoi(*, disks: int, max_turns: int, dense: bool = False, split: str = "train") -> Game:
    """Bring `disks` disks from a random legal position to peg C."""
    return Game(Hanoi(disks=disks), max_turns=max_turns, dense=dense, split=split)
