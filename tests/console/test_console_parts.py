"""What the screen of a run is made of: the curve, the time left, episodes to read, safe text."""

import io
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from tests.console.console_rows import Clock, evaluation, row
from turnwise.cli.common import parse_settings
from turnwise.console.chart import draw_curve
from turnwise.console.progress import RunProgress
from turnwise.console.samples import LONGEST, episode_text
from turnwise.console.views import duration, evaluation_line, evaluation_table, measures_of, next_steps, step_table
from turnwise.recipe.loading import load_recipe
from turnwise.types import StopReason, Trajectory, Turn
from turnwise.untrusted import printable


def test_after_imitation_the_next_command_plays_as_the_recipe_does():
    kwargs = {"prompt": "terse", "memories": 5, "seats": ["manager", "answerer"], "distil": None}
    env = {"id": "memory/both", "kwargs": kwargs, "held_out": {"split": "test"}}
    rollout = {"max_turns": 2, "context": 128}
    done = load_recipe(None, {"model": "pico-memory", "env": env, "rollout": rollout, "train": {"steps": 1}})
    progress = RunProgress(steps=1, rows=[row(1)])
    text = next_steps(done.model_copy(update={"stage": "imitation"}), Path("runs/it's mine"), progress).plain
    words = shlex.split(text.splitlines()[-1].removeprefix("try next"))
    assert words[:4] == ["turnwise", "train", "env=memory/both", "model=runs/it's mine"]
    again = load_recipe(None, parse_settings([*words[2:3], *words[4:], "model=pico-memory"]))
    assert (again.env, again.rollout) == (done.env, done.rollout)


@pytest.mark.parametrize(
    "value", ["true", "1e-5", "a: b", "", "csv,logs", "it's", "~", ["a", "b"], {"a": [1, None]}, 0.5]
)
def test_a_value_is_written_as_a_command_reads_it(value: object):
    done = load_recipe(None, {"train": {"steps": 1}})
    env = done.env.model_copy(update={"kwargs": {"name": value}})
    done = done.model_copy(update={"env": env, "stage": "imitation"})
    text = next_steps(done, Path("run"), RunProgress(steps=1, rows=[row(1)])).plain
    words = shlex.split(text.splitlines()[-1].removeprefix("try next"))
    assert parse_settings(words[4:]) == {"env": {"kwargs": {"name": value}}}


@pytest.mark.parametrize(("tasks", "more"), [({}, "--episodes 1000"), ({"eval/tasks": 2.0}, "--tries 8")])
def test_where_all_held_out_tasks_were_played_more_tries_are_proposed(tasks: dict[str, float], more: str):
    done = load_recipe(None, {"train": {"steps": 1}})
    progress = RunProgress(steps=1, rows=[row(1)], evaluations=[evaluation(1, 0.5) | tasks])
    assert f"turnwise eval run {more}" in next_steps(done, Path("run"), progress).plain


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
    row = {**evaluation(3, 0.5), "eval/kl": 1.25, "eval/kl_low": 1.0, "eval/kl_high": 1.5}
    row |= {"eval/score_true": 0.4375, "eval/reward_true": 0.125}
    line = evaluation_line(row).plain
    assert "kl 1.250 [1.000, 1.500]" in line
    assert "meteor" not in line
    assert "reward true 0.125" in line
    assert "score" not in line
    out = Console(file=io.StringIO(), width=100)
    out.print(evaluation_table({"now": row}))
    assert isinstance(out.file, io.StringIO)
    shown = [line.split() for line in out.file.getvalue().splitlines()]
    assert ["reward", "true", "0.125"] in shown
    assert ["score", "true", "0.438"] in shown


@pytest.mark.parametrize(
    ("rows", "barren"),
    [
        ([{"rollout/reward": 0.0}], True),
        ([{"rollout/reward": 0.4}], False),  # the mean of one step: its episodes may differ
        ([{"rollout/reward": 0.4}, {"rollout/reward": 0.4}], True),
        ([{"rollout/reward": 0.0, "rollout/zero_variance": 1.0}], True),
        ([{"rollout/reward": 0.0, "rollout/zero_variance": 0.5}], False),
        ([{"rollout/reward": 0.0, "rollout/zero_variance": 0.0}], False),
        ([{"rollout/reward": 0.0, "rollout/success": 0.1}], False),
    ],
)
def test_rewards_that_may_differ_are_not_called_equal(rows, barren):
    progress = RunProgress(
        steps=9, rows=[{"step": step, "rollout/success": 0.0, **each} for step, each in enumerate(rows)]
    )
    assert bool(progress.barren) == barren
