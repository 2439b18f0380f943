"""What the screen of a run is made of: the curve, the time left, episodes to read, safe text."""

import io

import pytest
from rich.console import Console

from tests.console.console_rows import Clock, evaluation, row
from turnwise.console.chart import draw_curve
from turnwise.console.progress import RunProgress
from turnwise.console.samples import LONGEST, episode_text
from turnwise.console.views import duration, evaluation_line, evaluation_table, measures_of, step_table
from turnwise.types import StopReason, Trajectory, Turn
from turnwise.untrusted import printable


def test_what_cannot_be_seen_is_escaped_and_lines_stay():
    assert printable("a\r\nb\tc\u00a0d") == "a\nb    c d"
    assert printable("\ud800\x00é中") == r"\ud800\x00é中"
    assert printable("plain") == "plain"


def test_an_episode_reads_turn_by_turn():
    turns = [
        Turn(observation="Guess a number", action="ten", valid=False),
        Turn(observation="Not a number.\nAgain.", action="7", reward=1.0),
    ]
    trajectory = Trajectory(id="a", turns=turns, stop=StopReason.DONE, terminated=True, final_observation="Right!")
    assert episode_text(trajectory, title="after").plain.splitlines() == [
        "after",
        "   1 Guess a number",
        "   > ten",
        "     [not a valid action]",
        "   2 Not a number.",
        "     Again.",
        "   > 7",
        "     [reward 1]",
        "     Right!",
        "   = solved: 2 turns, reward 1, stop: done",
    ]


def test_an_episode_that_a_fault_ended_is_not_called_unsolved_and_long_texts_lose_their_middle():
    turn = Turn(observation="x" * LONGEST + "yz" * LONGEST, action="")
    lines = episode_text(Trajectory(id="a", turns=[turn], stop=StopReason.TIMEOUT)).plain.splitlines()
    assert lines[1:] == [
        f"     … {2 * LONGEST} characters left out …",
        "     " + "yz" * (LONGEST // 4),
        "   > (nothing)",
        "   = lost to a fault: 1 turn, reward 0, stop: timeout",
    ]


def test_time_left_follows_the_pace_of_the_recent_steps():
    clock = Clock()
    progress = RunProgress(steps=100, clock=clock)
    assert progress.seconds_left is None
    clock.now = 500.0  # loading and the first evaluation, which will not come again
    progress.add(row(1))
    assert progress.seconds_left == pytest.approx(99 * 2.0)
    for step in range(2, 42):
        clock.now += 3.0
        progress.add(row(step))
    assert progress.seconds_left == pytest.approx(59 * 3.0)
    assert [duration(seconds) for seconds in (None, 59.6, 3725)] == ["–", "1:00", "1:02:05"]


def test_parts_of_the_reward_have_columns_behind_it():
    progress = RunProgress(steps=9)
    progress.add({**row(1), "rollout/reward_exact": 0.25, "rollout/reward_st\x1byle": -0.5})
    progress.add(row(2))
    labels = [measure.label for measure in measures_of(progress)]
    place = labels.index("reward")
    assert labels[place : place + 4] == ["reward", "exact", "st\\x1byle", "turns"]
    shown = io.StringIO()
    Console(file=shown, width=200).print(step_table(progress, width=200))
    head, *_, first, second = shown.getvalue().splitlines()
    assert head.split().index("exact") == head.split().index("reward") + 1
    assert " 0.250" in first
    assert " -0.500" in first
    assert second.count("–") - first.count("–") == 2


def test_a_step_that_comes_again_replaces_what_followed_it():
    progress = RunProgress(steps=9)
    for step in (1, 2, 3, 2):
        progress.add(row(step))
    assert [point for point, _ in progress.success] == [1, 2]
    assert progress.best is not None
    assert progress.best["step"] == 2


def test_the_curve_is_as_high_as_its_shares_and_as_wide_as_it_may_be():
    lines = draw_curve([(1, 0.0), (2, 0.5), (3, 1.0), (4, 0.25)], width=19, height=2)
    assert lines == [
        " 1.0 ┤      ███   ",
        " 0.5 ┤   ██████▄▄▄",
        " 0.0 └────────────",
        "      step 1     4",
    ]
    many = draw_curve([(step, step % 2) for step in range(1, 401)], width=300, height=2)
    assert many[1] == " 0.5 ┤" + "█" * 100  # four steps to a column, of which the mean is a half
    assert draw_curve([(1, 0.5)], width=10) == []
    assert draw_curve([], width=80) == []


def test_an_evaluation_shows_measures_that_were_made_and_its_table_the_scores_too():
    row = {**evaluation(3, 0.5), "eval/kl": 1.25, "eval/kl_low": 1.0, "eval/kl_high": 1.5, "eval/score_true": 0.4375}
    line = evaluation_line(row).plain
    assert "kl 1.250 [1.000, 1.500]" in line
    assert "meteor" not in line
    assert "true" not in line
    out = Console(file=io.StringIO(), width=100)
    out.print(evaluation_table({"now": row}))
    assert isinstance(out.file, io.StringIO)
    assert "true" in out.file.getvalue()
    assert "0.438" in out.file.getvalue()
