"""What the recipe's judge says about each group: win probabilities, or rewards in place of the environment's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import islice
from statistics import fmean
from typing import TypeVar

from turnwise.judges.judge import Judge, Matrix, ScoringJudge, checked_scores, judge_matrices
from turnwise.judges.judge_kinds import Gives, gives_of, make_judge
from turnwise.ranks import ALONE, Ranks
from turnwise.recipe.schema import Recipe
from turnwise.recipe.seating import trained_seats
from turnwise.types import ENV, ENVIRONMENT, JUDGE, Group, Trajectory

Item = TypeVar("Item")
WINS = "wins"
"""The stream with an answer's mean probability to win against its group, itself included as a tie."""


class Jury:
    """Lets a judge look at whole groups: `Jury(RewardJudge()).judge(groups)`; without a judge it does nothing.

    Each rank judges its share of the groups, and all get the same numbers.
    """

    def __init__(
        self,
        judge: Judge | None,
        *,
        gives: Gives = "wins",
        weight: float | None = None,
        seats: Collection[str] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Only what was played at `seats` is judged; None: all of it.

        With a `weight` the judge's reward is a part next to the environment's, otherwise it takes its place.
        """
        self.asked, self.ranks, self._seats, self._weight = judge, ranks, seats, weight
        self._gives: Gives = gives

    @classmethod
    def of(cls, recipe: Recipe, ranks: Ranks = ALONE) -> Jury:
        """The recipe's judge, if it has one."""
        if recipe.judge is None:
            return cls(None)
        options = recipe.judge.options
        judge, gives = make_judge(recipe.judge.kind, options), gives_of(options)
        return cls(judge, gives=gives, weight=options.get("weight"), seats=trained_seats(recipe), ranks=ranks)

    def judge(self, groups: Sequence[Group]) -> None:
        """Write the judge's opinion into the trajectories. Every rank has all groups."""
        if (judge := self.asked) is None:
            return
        compared = [members for group in groups if (members := self._members(group))]
        opinions = self._shared(lambda part: _opinions(judge, part, self._gives), compared)
        for members, opinion in zip(compared, opinions, strict=True):
            for trajectory, row in zip(members, opinion, strict=True):
                if self._gives == "wins":
                    note_wins(trajectory, row, members)
                else:
                    _pay(trajectory, row, self._weight)

    def compare(self, pairs: Sequence[tuple[Trajectory, Trajectory]]) -> list[float]:
        """The probability that the first one of each pair is better; there must be a judge."""
        judge = self.asked
        assert judge is not None
        cases = [(first.task, (_unpaid(first), _unpaid(second))) for first, second in pairs]
        return [matrix[0][1] for matrix in self._shared(lambda part: judge_matrices(judge, part), cases)]

    def _shared(self, work: Callable[[list[Item]], list[Matrix]], items: Sequence[Item]) -> list[Matrix]:
        """Each rank works on its share; all get the whole."""
        return [result for rank in self.ranks.gather(work(self.ranks.share(items))) for result in rank]

    def _members(self, group: Group) -> list[Trajectory]:
        """What can be judged: a failed episode says nothing."""
        seats = self._seats
        here = [each for each in group.trajectories if seats is None or each.seat in seats]
        return [each for each in here if each.turns and not each.stop.is_failure]


def is_paid_by_judge(trajectory: Trajectory) -> bool:
    """Whether its rewards are a judge's."""
    return any(ENV in turn.reward_parts for turn in trajectory.turns)


def env_reward(trajectory: Trajectory) -> float:
    """What the environment itself paid."""
    return sum(turn.reward_parts.get(ENV, turn.reward) for turn in trajectory.turns)


def _unpaid(trajectory: Trajectory) -> Trajectory:
    """As the environment paid it: a judge that reads rewards must not read its own."""
    turns = [replace(turn, reward=turn.reward_parts.get(ENV, turn.reward)) for turn in trajectory.turns]
    return replace(trajectory, turns=turns)


def _opinions(judge: Judge, compared: Sequence[list[Trajectory]], gives: Gives) -> list[Matrix]:
    """For every member of every group a row: of probabilities to beat the others, or of rewards."""
    if gives != "wins" and isinstance(judge, ScoringJudge):
        everyone = [each for members in compared for each in members]
        scores = iter(checked_scores(judge, everyone, per="turn" if gives == "turn-reward" else "episode"))
        return [list(islice(scores, len(members))) for members in compared]
    matrices = judge_matrices(judge, [(members[0].task, members) for members in compared])
    return matrices if gives == "wins" else [[[fmean(row)] for row in matrix] for matrix in matrices]


def note_wins(
    trajectory: Trajectory, row: list[float], members: Sequence[Trajectory], *, chance: float | None = None
) -> None:
    """Note whom the answer beats, in the trajectory and for the learner at its last sampled token.

    `chance` is its probability to win if that is not the mean of the row.
    """
    trajectory.info = {**trajectory.info, "beats": row, "rivals": [each.id for each in members]}
    spoken = [turn for turn in trajectory.turns if len(turn.sampled_ids)] or trajectory.turns
    spoken[-1].streams = {**spoken[-1].streams, WINS: [fmean(row) if chance is None else chance]}


def _pay(trajectory: Trajectory, rewards: Sequence[float], weight: float | None) -> None:
    """Replace the rewards, or add to them; one reward alone is the last turn's.

    Success is still the environment's to say.
    """
    trajectory.info = {**trajectory.info, "success": trajectory.success}
    early = len(trajectory.turns) - len(rewards)
    for turn, reward in zip(trajectory.turns, [*[0.0] * early, *rewards], strict=True):
        paid = turn.reward
        if weight is None:
            turn.reward_parts, turn.reward = {JUDGE: reward, ENV: paid}, reward
        else:
            own = turn.reward_parts or {ENVIRONMENT: paid}
            turn.reward_parts = {**own, JUDGE: weight * reward, ENV: paid}
            turn.reward = paid + weight * reward
