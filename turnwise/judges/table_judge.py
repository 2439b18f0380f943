"""A table of known answers as a judge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

from turnwise.types import Trajectory

_FORM = "answers: [a, b], wins: [[0.5, 0.9], [0.1, 0.5]]"


class TableJudge:
    """Looks up who beats whom. The table may be cyclic: rock beats scissors, scissors beat paper, paper beats rock.

    An answer is what the environment reports as `info["label"]`, else the text of the last turn. One that is not in the
    table beats those that are with probability `other`, and ties with its like.
    """

    def __init__(self, *, answers: Sequence[str], wins: Sequence[Sequence[float]], other: float = 0.0) -> None:
        self._place = {str(answer): place for place, answer in enumerate(answers)}
        self._wins, self._other = [list(row) for row in wins], other
        size = len(answers)
        if size < 2 or len(self._place) != size or [len(row) for row in self._wins] != [size] * size:
            raise ValueError(f"judge: a table has two or more different answers and a square of wins; write {_FORM}")
        if not all(0 <= value <= 1 for value in (*chain(*self._wins), other)):
            raise ValueError("judge: wins and other are probabilities from 0 to 1")
        for one in range(size):
            for two in range(size):
                if not math.isclose(self._wins[one][two] + self._wins[two][one], 1, abs_tol=1e-6):
                    raise ValueError(
                        f"judge.wins: {answers[one]} beats {answers[two]} with {self._wins[one][two]:g} and is beaten "
                        f"with {self._wins[two][one]:g}; the two must add up to 1, and an answer against itself is 0.5"
                    )

    def prefer(self, task: Any, first: Trajectory, second: Trajectory) -> float:
        """By the table."""
        one, other = (self._place.get(_label(each)) for each in (first, second))
        if one is None or other is None:
            return 0.5 if one == other else self._other if one is None else 1 - self._other
        return self._wins[one][other]


def _label(trajectory: Trajectory) -> str:
    said = trajectory.turns[-1].action if trajectory.turns else ""
    return str(trajectory.info.get("label", said)).strip()
