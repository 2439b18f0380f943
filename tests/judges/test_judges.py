"""Judges: probabilities from rewards, tables and classes from outside, and the matrix of a group."""

import math
from typing import Any

import pytest

from turnwise.judges.judge import judge_matrices, judge_matrix
from turnwise.judges.judge_kinds import check_judge, make_judge
from turnwise.judges.reward_judge import RewardJudge
from turnwise.judges.table_judge import TableJudge
from turnwise.types import StopReason, Trajectory, Turn

HERE = __name__
CYCLE = {"answers": ["rock", "paper", "scissors"], "wins": [[0.5, 0.1, 0.9], [0.9, 0.5, 0.1], [0.1, 0.9, 0.5]]}


def said(text: str, reward: float = 0.0, **info: Any) -> Trajectory:
    turns = [Turn(sampled_ids=[1], action=text, reward=reward)]
    return Trajectory(id=text, turns=turns, stop=StopReason.DONE, info=info)


class Longer:
    """Prefers the longer answer; counts how often it is asked."""

    def __init__(self, *, sure: float = 1.0) -> None:
        self.sure, self.asked = sure, 0

    def prefer(self, task: Any, first: Trajectory, second: Trajectory) -> float:
        self.asked += 1
        return self.sure if len(first.turns[-1].action) > len(second.turns[-1].action) else 1 - self.sure


def test_the_reward_judge_gives_the_sigmoid_of_the_scaled_difference() -> None:
    matrix = judge_matrix(RewardJudge(scale=2.0), None, [said("a", 1.0), said("b", 0.0), said("c", 1.0)])
    win = 1 / (1 + math.exp(-2.0))
    assert matrix == [pytest.approx(row) for row in ([0.5, win, 0.5], [1 - win, 0.5, 1 - win], [0.5, win, 0.5])]
    assert RewardJudge(scale=2.0).prefer(None, said("a", 1.0), said("b")) == pytest.approx(win)
    assert judge_matrix(RewardJudge(), None, [said("a", -1e6), said("b", 1e6)]) == [[0.5, 0.0], [1.0, 0.5]]


def test_a_table_may_be_cyclic_and_knows_labels() -> None:
    judge = TableJudge(**CYCLE)
    answers = [said("rock"), said(" paper\n"), said("I hold them open", label="scissors")]
    assert judge_matrix(judge, None, answers) == [pytest.approx(row) for row in CYCLE["wins"]]


def test_an_answer_outside_the_table_loses_and_ties_with_its_like() -> None:
    judge = TableJudge(**CYCLE)
    assert judge.prefer(None, said("well"), said("rock")) == 0.0
    assert judge.prefer(None, said("rock"), said("well")) == 1.0
    assert judge.prefer(None, said("well"), said("fire")) == 0.5


def test_a_judge_that_compares_is_asked_once_for_each_pair() -> None:
    judge = Longer(sure=0.75)
    answers = [said("a"), said("bb"), said("ccc")]
    assert judge_matrix(judge, None, answers) == [[0.5, 0.25, 0.25], [0.75, 0.5, 0.25], [0.75, 0.75, 0.5]]
    assert judge.asked == 3


@pytest.mark.parametrize("judge", [Longer(), RewardJudge()])
def test_cases_that_are_judged_together_are_judged_as_if_alone(judge: Any) -> None:
    cases = [("x", [said("a", 1.0), said("bb")]), ("y", [said("c")]), ("z", [said("d"), said("ee", 2.0), said("f")])]
    assert judge_matrices(judge, cases) == [judge_matrix(judge, task, answers) for task, answers in cases]


@pytest.mark.parametrize("wrong", [1.5, -0.1, math.nan])
def test_what_is_not_a_probability_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"judge: Longer gave .*; a probability is from 0 to 1"):
        judge_matrix(Longer(sure=wrong), None, [said("aa"), said("b")])


def test_scores_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="judge: RewardJudge gave the score nan; scores must be finite"):
        judge_matrix(RewardJudge(), None, [said("a", math.nan), said("b")])


def test_a_class_from_outside_is_a_judge_with_its_options() -> None:
    judge = make_judge(f"{HERE}:Longer", {"sure": 0.9, "gives": "reward"})
    assert judge.prefer(None, said("aa"), said("b")) == 0.9


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("rewrd", {}, "judge: unknown kind 'rewrd'; did you mean reward?"),
        ("reward", {"scal": 2}, "judge: reward: .*'scal'; did you mean scale[?] It takes scale"),
        ("reward", {"gives": "win"}, "judge.gives is 'win'; choose wins, reward, turn-reward"),
        ("table", {}, "judge: table: missing a required .*'answers'"),
        (
            "table",
            {**CYCLE, "gives": "turn-reward"},
            "gives=turn-reward needs a judge that scores turns, and table only",
        ),
        ("os:system", {}, "judge: os:system is not a class with prefer"),
        ("nowhere:Judge", {}, "judge: nowhere:Judge does not load"),
    ],
)
def test_unknown_kinds_and_options_are_refused_before_anything_runs(
    kind: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_judge(kind, options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"answers": ["a"], "wins": [[0.5]]}, "a table has two or more different answers"),
        ({"answers": ["a", "b"], "wins": [[0.5, 0.9]]}, "a square of wins"),
        (
            {"answers": ["a", "b"], "wins": [[0.5, 0.9], [0.2, 0.5]]},
            "judge.wins: a beats b with 0.9 and is beaten with 0.2",
        ),
        ({"answers": ["a", "b"], "wins": [[0.5, 1.9], [-0.9, 0.5]]}, "probabilities from 0 to 1"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_judge("table", options)
