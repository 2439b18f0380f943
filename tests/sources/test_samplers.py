"""Task samplers are values: the same draw and the same measurements give the same tasks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.train.small_runs import small_recipe
from turnwise.outside import unread
from turnwise.sources.cursor import Cursor
from turnwise.sources.samplers import Curriculum, Difficulty, Uniform, make_sampler
from turnwise.sources.tasks import Draw, Measured, Tally, Task
from turnwise.trust import outside_names
from turnwise.types import Group, StopReason, Trajectory, Turn

HERE = "tests.sources.test_samplers"


def draw(*, step: int = 1, count: int = 4, drawn: int = 0, most: int = 4, tasks: Sequence[Any] = ()) -> Draw:
    return Draw(seed=0, step=step, count=count, drawn=drawn, most=most, list_tasks=lambda: tasks)


@dataclass(frozen=True)
class Backwards:
    """A sampler of the user's own."""

    start: int = 100

    def choose(self, draw: Draw, measured: Measured) -> list[Task]:
        return [Task(seed=self.start - number, name="all") for number in draw.numbers]


class Lazy:
    """Chooses too few."""

    def choose(self, draw: Draw, measured: Measured) -> list[Task]:
        return []


def test_uniform_never_gives_a_task_twice_whatever_a_step_draws_besides() -> None:
    draws = [draw(step=step, most=12, drawn=drawn) for step in (1, 2, 3) for drawn in (0, 4, 8)]
    seeds = [task.seed for each in draws for task in Uniform().choose(each, {})]
    assert len(set(seeds)) == 36
    assert [task.seed for task in Uniform().choose(draw(step=3), {})] == [8, 9, 10, 11]


def test_epochs_play_every_listed_task_once_and_then_again_in_another_order() -> None:
    tasks = [{"row": row} for row in range(10)]
    draws = [draw(step=step, tasks=tasks) for step in range(1, 6)]
    chosen = [task for each in draws for task in make_sampler("epochs", {}).choose(each, {})]
    rounds = [[task.task["row"] for task in chosen[:10]], [task.task["row"] for task in chosen[10:]]]
    assert [sorted(each) for each in rounds] == [list(range(10))] * 2
    assert rounds[0] != rounds[1]
    assert len({task.seed for task in chosen}) == 20


def test_a_curriculum_by_steps_changes_arguments_seeds_and_listed_tasks() -> None:
    stages = [
        {"kwargs": {"hops": 1}, "seeds": 2, "until": 2},
        {"kwargs": {"hops": 2}, "tasks": [1, 3], "until": 4},
        {"kwargs": {"hops": 3}},
    ]
    curriculum = make_sampler("curriculum", {"stages": stages})

    def chosen(step: int) -> list[tuple[int, Any, Any, float | None]]:
        tasks = curriculum.choose(draw(step=step, count=3, most=3, tasks=["a", "b", "c"]), {})
        return [(task.seed, task.task, task.kwargs["hops"], task.level) for task in tasks]

    assert chosen(2) == [(1, None, 1, 0.0), (0, None, 1, 0.0), (1, None, 1, 0.0)]
    assert chosen(3) == [(6, "b", 2, 1.0), (7, "c", 2, 1.0), (8, "b", 2, 1.0)]
    assert chosen(5) == [(12, None, 3, 2.0), (13, None, 3, 2.0), (14, None, 3, 2.0)]


def test_a_curriculum_by_success_waits_for_enough_tries_and_never_goes_back() -> None:
    curriculum = Curriculum.model_validate({"stages": [{"success": 0.8, "least": 16}, {"success": 0.5}, {}]})

    def level(**measured: Tally) -> float | None:
        tallies = {name.replace("_", "-"): tally for name, tally in measured.items()}
        return curriculum.choose(draw(), tallies)[0].level

    assert level() == 0
    assert level(stage_0=Tally(tries=8, success=1.0)) == 0
    assert level(stage_0=Tally(tries=16, success=0.7)) == 0
    assert level(stage_0=Tally(tries=16, success=0.8)) == 1
    assert level(stage_0=Tally(tries=16, success=0.8), stage_1=Tally(tries=99, success=0.6)) == 2


def test_difficulty_prefers_tasks_near_its_target_and_forgets_none() -> None:
    measured = {f"task-{n}": Tally(tries=8, success=success) for n, success in enumerate([0.0, 1.0, 0.5, 0.45])}
    sampler = Difficulty(seeds=4)
    seen = Counter(
        task.name for step in range(400) for task in sampler.choose(draw(step=step, count=1, most=1), measured)
    )
    assert min(seen["task-2"], seen["task-3"]) > 5 * max(seen["task-0"], seen["task-1"])
    assert set(seen) == {"task-0", "task-1", "task-2", "task-3"}


def test_difficulty_draws_without_replacement_within_a_step_until_the_set_is_used_up() -> None:
    sampler = Difficulty(seeds=6)
    first, second = (sampler.choose(draw(count=3, drawn=drawn, most=9), {}) for drawn in (0, 3))
    assert sorted(task.name for task in (*first, *second)) == [f"task-{n}" for n in range(6)]
    assert sampler.choose(draw(count=3, drawn=6, most=9), {}) == first
    assert sampler.choose(draw(step=2, count=6, most=9), {}) != [*first, *second]


def test_difficulty_takes_the_tasks_that_the_environment_lists() -> None:
    tasks = Difficulty().choose(draw(count=3, tasks=["a", "b", "c"]), {})
    assert sorted(task.task for task in tasks) == ["a", "b", "c"]


def test_a_sampler_of_the_users_own_is_named_like_an_environment() -> None:
    recipe = small_recipe({"source": {"tasks": {"kind": f"{HERE}:Backwards", "start": 50}}})
    assert [spec.seed for spec in Cursor(recipe).draw(1)][:3] == [50, 49, 48]
    assert outside_names(recipe.model_dump(mode="json")) == ["tests.train.small_envs:Say", f"{HERE}:Backwards"]
    with unread():
        small_recipe({"source": {"tasks": "nowhere:Sampler"}})  # a dry run imports nothing


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ("curiculum", "source.tasks: unknown kind 'curiculum'; did you mean curriculum?"),
        (
            {"kind": "difficulty", "targt": 0.5},
            "source.tasks: difficulty: .*'targt'; did you mean target[?] It takes seeds, target, floor",
        ),
        ({"kind": "difficulty", "target": 2}, "source.tasks.target: Input should be less than or equal to 1"),
        ("curriculum", "source.tasks: curriculum: missing a required .*'stages'"),
        ({"kind": "curriculum", "stages": [{}, {}]}, "source.tasks: stage 0 has no end; give it until"),
        ({"kind": "curriculum", "stages": [{"til": 3}]}, "source.tasks.stages.0.til: Extra inputs are not permitted"),
        ("os:system", "source.tasks: os:system is not a class with choose"),
        ("nowhere:Sampler", "source.tasks: nowhere:Sampler does not load"),
    ],
)
def test_a_sampler_that_does_not_fit_is_refused_by_name(tasks: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_recipe({"source": {"tasks": tasks}})


def test_a_sampler_that_gives_another_number_of_tasks_is_refused() -> None:
    with pytest.raises(ValueError, match="Lazy chose 0 tasks where 16 were wanted"):
        Cursor(small_recipe({"source": {"tasks": f"{HERE}:Lazy"}})).draw(1)


def test_an_environment_without_a_list_says_what_to_set() -> None:
    with pytest.raises(ValueError, match="lists no tasks; say how many seeds to play"):
        Cursor(small_recipe({"source": {"tasks": "difficulty"}})).draw(1)


def played(name: str, *successes: bool, logprobs: bool = True) -> Group:
    turns = [Turn(sampled_ids=[1], logprobs=[-1.0] if logprobs else None)]
    tries = [
        Trajectory(id=f"{name}/{n}", turns=turns, stop=StopReason.DONE, info={"success": success})
        for n, success in enumerate(successes)
    ]
    return Group(id=name, trajectories=tries)


def test_what_the_policy_did_is_counted_and_what_experts_did_is_not() -> None:
    cursor = Cursor(small_recipe({"source": {"tasks": {"kind": "difficulty", "seeds": 64}}}))
    name = cursor.draw(1)[0].group
    cursor.record(1, [played(name, True, False, False, False), played(f"{name}/other-seat", True, logprobs=False)])
    assert list(cursor.state_dict()["settled"].values()) == [[4, 0.25]]


def test_a_running_mean_follows_the_policy() -> None:
    cursor = Cursor(small_recipe({"source": {"tasks": {"kind": "difficulty", "seeds": 1}}}))
    for step in range(1, 21):
        cursor.record(step, [played(spec.group, step > 10) for spec in cursor.draw(step)])
    [(tries, success)] = cursor.state_dict()["settled"].values()
    assert tries == 320
    assert success == pytest.approx(1 - 0.8**10)  # a plain mean would be 0.5


@pytest.mark.parametrize("max_lag", [0, 2])
def test_tasks_follow_from_steps_that_are_surely_done_and_a_resumed_cursor_draws_the_same(max_lag: int) -> None:
    recipe = small_recipe(
        {"algorithm": {"preset": "rebn", "max_lag": max_lag}, "source": {"tasks": {"kind": "difficulty", "seeds": 64}}}
    )

    def groups(specs: list[Any]) -> list[Group]:
        return [played(spec.group, spec.seed % 2 == 0, spec.seed % 3 == 0) for spec in specs]

    alone = Cursor(recipe)
    ahead = {step: alone.draw(step) for step in range(1, max_lag + 2)}  # before anything is done
    for step in range(1, 6):
        alone.record(step, groups(ahead[step]))
        ahead[step + 1 + max_lag] = alone.draw(step + 1 + max_lag)
    resumed = Cursor(recipe, state=alone.state_dict())
    for step in range(6, 7 + max_lag):
        assert resumed.draw(step) == ahead[step]
    assert Cursor(recipe).draw(7 + max_lag) != resumed.draw(7 + max_lag)
