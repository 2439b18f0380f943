"""What a judge is: it says how probably one answer is better than another, or scores answers one by one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, islice
from typing import Any, Literal, Protocol, runtime_checkable

from turnwise.types import Trajectory

Per = Literal["episode", "turn"]
Matrix = list[list[float]]
"""Entry [i][j] is the probability that answer i beats answer j; entry [i][i] is 0.5."""
_TIE = 0.5


class Judge(Protocol):
    """Compares two answers to one task. A judge from outside is a class with `prefer`.

    One that waits for others, such as a server, may have an attribute `concurrency`: so many threads ask it at once.
    """

    def prefer(self, task: Any, first: Trajectory, second: Trajectory) -> float:
        """The probability that the first answer is better."""
        ...


@runtime_checkable
class ScoringJudge(Judge, Protocol):
    """A judge that gives every answer a number; the difference of two is the log-odds that the first one wins."""

    def score(self, trajectories: Sequence[Trajectory], *, per: Per) -> list[list[float]]:
        """For each trajectory one number, or one number per turn."""
        ...


def judge_matrix(judge: Judge, task: Any, trajectories: Sequence[Trajectory]) -> Matrix:
    """P[i][j], the probability that answer i beats answer j, of all the answers to one task.

    A judge that scores gives sigmoid(s_i − s_j). Any other is asked once for each pair, and P[j][i] is 1 − P[i][j].
    """
    return judge_matrices(judge, [(task, trajectories)])[0]


def judge_matrices(judge: Judge, cases: Sequence[tuple[Any, Sequence[Trajectory]]]) -> list[Matrix]:
    """The matrix of each case, a task and its answers. All are judged together: that suits models and servers."""
    if isinstance(judge, ScoringJudge):
        everyone = [each for _, trajectories in cases for each in trajectories]
        scores = (score for (score,) in checked_scores(judge, everyone, per="episode"))
        return [scores_to_matrix(list(islice(scores, len(trajectories)))) for _, trajectories in cases]
    pairs = [(task, *pair) for task, trajectories in cases for pair in combinations(trajectories, 2)]
    with ThreadPoolExecutor(max_workers=max(1, int(getattr(judge, "concurrency", 1)))) as threads:
        asked = threads.map(lambda pair: _probability(judge, judge.prefer(*pair)), pairs)
        answers = iter(list(asked))
    return [_mirrored(answers, len(trajectories)) for _, trajectories in cases]


def _mirrored(answers: Iterator[float], size: int) -> Matrix:
    """The next answers as the upper half of a matrix."""
    matrix = [[_TIE] * size for _ in range(size)]
    for one, other in combinations(range(size), 2):
        matrix[one][other] = next(answers)
        matrix[other][one] = 1 - matrix[one][other]
    return matrix


def checked_scores(judge: ScoringJudge, trajectories: Sequence[Trajectory], *, per: Per) -> list[list[float]]:
    """The judge's scores; ValueError if they are too few, too many or not finite."""
    scores = judge.score(trajectories, per=per)
    wanted = [len(each.turns) if per == "turn" else 1 for each in trajectories]
    if [len(each) for each in scores] != wanted:
        raise ValueError(f"judge: {type(judge).__name__}.score must give one number per {per}")
    if wrong := [value for each in scores for value in each if not math.isfinite(value)]:
        raise ValueError(f"judge: {type(judge).__name__} gave the score {wrong[0]}; scores must be finite")
    return scores


def scores_to_matrix(scores: Sequence[float]) -> Matrix:
    """P[i][j] = sigmoid(s_i − s_j)."""
    return [[_sigmoid(one - other) for other in scores] for one in scores]


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else 1 - 1 / (1 + math.exp(value))


def _probability(judge: Judge, value: float) -> float:
    if not 0 <= value <= 1:  # also if it is NaN
        raise ValueError(f"judge: {type(judge).__name__} gave {value}; a probability is from 0 to 1")
    return float(value)
