"""Sampling plans: who is tried again, and what a budget leaves of it."""

import random

import pytest

from turnwise.algorithm import Algorithm
from turnwise.algorithm.rules import resolve
from turnwise.ops.tries import SamplingPlan, Schedule, dars, further_tries, group


@pytest.mark.parametrize(("schedule", "expected"), [("et", [27, 11, 3, 1, 0]), ("hw", [56, 24, 8, 3, 0])])
def test_eight_first_tries_ask_for_the_published_numbers(schedule: Schedule, expected: list[int]) -> None:
    assert [further_tries(k / 8, size=8, schedule=schedule) for k in range(5)] == expected


@pytest.mark.parametrize(("schedule", "expected"), [("et", [9, 5, 2, 1, 0]), ("hw", [23, 14, 6, 3, 0])])
def test_with_std_the_peak_is_n_and_the_weight_a_square_root(schedule: Schedule, expected: list[int]) -> None:
    assert [further_tries(k / 8, size=8, schedule=schedule, std=True) for k in range(5)] == expected


def test_a_group_never_has_more_tries_than_the_plan_allows() -> None:
    assert dars(most=32).further([0.0, 1 / 8, 1.0]) == [24, 11, 0]
    assert dars(schedule="hw", most=64).further([0.0, 1 / 8, 1.0]) == [56, 24, 0]
    assert dars(size=8, most=8).further([0.0]) == [0]


@pytest.mark.parametrize("size", [2, 3, 5, 8, 10, 16])
def test_schedules_agree_at_a_half_and_give_nothing_from_there_on(size: int) -> None:
    for success in (0.5, 0.75, 1.0):
        assert further_tries(success, size=size, schedule="et") == further_tries(success, size=size, schedule="hw") == 0
    almost = 0.5 - 1e-12
    assert further_tries(almost, size=size, schedule="et") == further_tries(almost, size=size, schedule="hw") == 0


@pytest.mark.parametrize("size", [8, 10, 16])
def test_equal_treatment_lifts_every_hard_task_to_the_weight_of_a_medium_one(size: int) -> None:
    for k in range(1, size // 2):
        rate = k / size
        tries = size + further_tries(rate, size=size, schedule="et")
        assert size / 2 <= tries * 2 * rate * (1 - rate) < size / 2 + 0.5


def test_counts_that_come_out_whole_are_not_rounded_up() -> None:
    for size in range(2, 40):
        for k in range(1, (size + 1) // 2):
            exact = -(-size * size // (2 * k)) - size  # n/(2u) − n
            assert further_tries(k / size, size=size, schedule="hw") == exact


def test_a_budget_is_never_exceeded_and_never_left_while_somebody_wants_it() -> None:
    rng = random.Random(0)
    for _ in range(500):
        size, budget = rng.randint(2, 16), rng.randint(1, 300)
        schedule: Schedule = rng.choice(["et", "hw"])
        plan = dars(size=size, schedule=schedule, most=size + rng.randint(0, 64), std=rng.random() < 0.5, budget=budget)
        successes = [rng.choice([None, rng.randint(0, size) / size]) for _ in range(rng.randint(0, 40))]
        spent = rng.randint(0, budget)
        given = plan.further(successes, spent=spent)
        wanted = SamplingPlan(tries=size, extra=plan.extra, most=plan.most).further(successes)
        assert sum(given) == min(budget - spent, sum(wanted))
        assert all(0 <= got <= want for got, want in zip(given, wanted, strict=True))


def test_a_short_budget_is_shared_in_proportion() -> None:
    assert dars(budget=10, most=64).further([0.0, 1 / 8, 2 / 8, 1.0]) == [6, 3, 1, 0]


def test_tasks_whose_tries_all_failed_with_an_error_are_not_tried_again() -> None:
    assert dars().further([None]) == [0]
    assert group().further([0.0]) == [0]


def test_a_limit_below_the_first_tries_is_refused() -> None:
    with pytest.raises(ValueError, match="most=4 is below size=8; raise it"):
        resolve(Algorithm.of({"sampling": {"kind": "dars", "most": 4}, "advantage": "group-mean"}))
