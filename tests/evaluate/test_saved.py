"""Saved evaluations: every task's outcome, read back, and compared on equal tasks only."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from turnwise.evaluate.evaluation import summarize
from turnwise.evaluate.saved import (
    SavedEvaluation,
    describe_evaluation,
    difference,
    read_evaluation,
    require_new,
    save_evaluation,
    unlike,
)
from turnwise.evaluate.saved_chapter import evaluations_chapter, read_evaluations
from turnwise.evaluate.statistics import cautious_difference
from turnwise.recipe.loading import load_recipe
from turnwise.recipe.schema import Recipe
from turnwise.types import Group, StopReason, Trajectory, Turn

RECIPE = load_recipe(None, {"env": "search/geo-1hop"})


def played(*outcomes: tuple[int, list[float]], task: bool = False) -> list[Group]:
    """Tries at tasks: the seed and the reward of every try; NaN is an environment that failed."""
    return [
        Group(
            id=f"env:{seed}",
            trajectories=[
                Trajectory(
                    id=f"{seed}/{place}",
                    turns=[Turn(reward=0.0 if reward != reward else reward)],
                    stop=StopReason.ENV_ERROR if reward != reward else StopReason.DONE,
                    seed=seed,
                    task={"n": seed} if task else None,
                )
                for place, reward in enumerate(rewards)
            ],
        )
        for seed, rewards in outcomes
    ]


def saved(groups: list[Group], *, label: str = "model", recipe: Recipe = RECIPE) -> SavedEvaluation:
    return describe_evaluation(recipe, summarize(groups), groups, label=label, command=["turnwise", "eval", label])


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    evaluation = saved(played((0, [1.0, 0.0]), (1, [float("nan")])))
    save_evaluation(tmp_path / "evals/first.json", evaluation)
    assert read_evaluation(tmp_path / "evals/first.json") == evaluation
    row = json.loads((tmp_path / "evals/first.json").read_text())["tasks"][0]
    assert (row["task"], row["success"], row["reward"], row["turns"]) == ("seed 0", [1.0, 0.0], [1.0, 0.0], [1, 1])
    assert evaluation.tasks[1] == {
        "task": "seed 1", "seat": "agent", "success": [], "reward": [], "turns": [], "faults": 1,
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"first\.json exists, and nothing is overwritten"):
        require_new(tmp_path / "evals/first.json")


def test_differences_are_paired_on_the_tasks_that_both_played() -> None:
    first = saved(played((0, [1.0]), (1, [0.0]), (2, [0.0]), (3, [0.0]), (9, [1.0])))
    other = saved(played((3, [1.0, 0.0]), (2, [1.0]), (1, [1.0]), (0, [1.0]), (8, [0.0]), (9, [float("nan")])))
    found = difference(first, other)
    assert found is not None
    assert (found.tasks, found.better, found.worse) == (4, 3, 0)
    assert found.success.value == pytest.approx((0 + 1 + 1 + 0.5) / 4)
    assert (found.success.low, found.success.high) == pytest.approx(
        cautious_difference([1, 1, 1, 0.5], [1, 0, 0, 0], span=1)
    )
    assert difference(first, saved(played((7, [1.0])))) is None


def test_equal_differences_on_few_tasks_leave_doubt() -> None:
    worse, better = (saved(played(*((seed, [value]) for seed in range(6)))) for value in (0.0, 1.0))
    found = difference(worse, better)
    assert found is not None
    assert found.success.value == found.success.high == 1
    assert found.success.low == pytest.approx(0.75 - 2.5706 * math.sqrt(0.4375 / 8), abs=1e-3)
    assert found.reward == found.success
    same = difference(worse, worse)
    assert same is not None
    assert same.success.low == pytest.approx(-2.5706 * 0.5 / math.sqrt(8), abs=1e-3)
    assert same.reward.low is None  # all rewards are 0: nothing says how far apart they can be


def test_equal_tasks_are_equal_whatever_their_seed() -> None:
    one, other = played((0, [1.0]), task=True), played((0, [0.0]), task=True)
    other[0].trajectories[0].seed = 5
    found = difference(saved(one), saved(other))
    assert found is not None
    assert found.success.value == -1
    assert found.success.low is None  # one task has no interval


def test_another_environment_or_setting_is_said_and_another_environment_not_paired() -> None:
    groups = played((0, [1.0]))
    elsewhere = saved(groups, label="other", recipe=load_recipe(None, {"env": "search/geo-2hop"}))
    assert difference(saved(groups), elsewhere) is None
    assert unlike(saved(groups), elsewhere) == "other was played elsewhere than model (env.id)"
    greedy = saved(
        groups, label="greedy", recipe=load_recipe(None, {"env": "search/geo-1hop", "eval": {"temperature": 0}})
    )
    assert unlike(saved(groups), greedy) == "model and greedy differ in temperature: 1.0 and 0.0"
    assert difference(saved(groups), greedy) is not None
    assert not unlike(saved(groups), saved(groups, label="other"))


def test_the_chapter_has_every_evaluation_with_its_interval_and_the_differences(tmp_path: Path) -> None:
    better = played(*((seed, [1.0]) for seed in range(8)))
    save_evaluation(tmp_path / "a.json", saved(played(*((seed, [float(seed < 4)]) for seed in range(8)))))
    save_evaluation(tmp_path / "b.json", saved(better))
    save_evaluation(tmp_path / "c.json", saved(better, label="third"))
    named = read_evaluations([tmp_path / name for name in ("a.json", "b.json", "c.json", "a.json")])
    assert list(named) == ["model (a)", "model (b)", "third"]
    chapter = evaluations_chapter(named)
    results, differences = chapter["tables"]
    assert results["rows"][0][2] == "0.500 [0.215, 0.785]"  # Wilson's, of 4 of 8
    assert [row[0] for row in differences["rows"]] == ["model (b)", "third"]
    assert differences["rows"][0][1] == "+0.500 [-0.096, +0.896]"
    assert differences["rows"][0][3:] == [4, 0, 8]
    assert [row["value"] for row in chapter["intervals"][0]["rows"]] == [0.5, 1.0, 1.0]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"kind": "saved evaluation", "schema": 9}', "[" * 100_000])
def test_another_file_is_refused_with_the_fix(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=r"a\.json is not a saved evaluation .*write one with `turnwise eval"):
        read_evaluation(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("part", "value"),
    [("label", ["model"]), ("env", "x"), ("settings", None), ("metrics", []), ("tasks", {}), ("tasks", ["seed 0"])],
)
def test_a_part_of_another_form_is_named(tmp_path: Path, part: str, value: Any) -> None:
    save_evaluation(tmp_path / "a.json", saved(played((0, [1.0]))))
    content = json.loads((tmp_path / "a.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps({**content, part: value}))
    named = "a task" if isinstance(value, list) and part == "tasks" else part
    with pytest.raises(ValueError, match=rf"a\.json is not a saved evaluation \({named} does not have the form"):
        read_evaluation(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", 3),
        ("seat", ["agent"]),
        ("success", [10**400]),
        ("success", "1"),
        ("reward", []),
        ("reward", [None]),
        ("faults", None),
    ],
)
def test_a_task_of_another_form_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    save_evaluation(tmp_path / "a.json", saved(played((0, [1.0]))))
    content = json.loads((tmp_path / "a.json").read_text())
    content["tasks"][0][name] = value
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="a task does not have the form"):
        read_evaluation(tmp_path / "a.json")
