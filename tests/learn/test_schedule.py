"""The learning rate rises over the warm-up and falls to a tenth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.learn.schedule import find_jump, learning_rate_factor
from turnwise.recipe.schema import Schedule, Train


def curve(schedule: Schedule, *, total: int, warmup: int = 0) -> list[float]:
    return [learning_rate_factor(step, total=total, warmup=warmup, schedule=schedule) for step in range(1, total + 1)]


def test_a_warm_up_rises_evenly_and_the_first_step_after_it_is_full() -> None:
    assert curve("constant", total=6, warmup=3) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_goes_evenly_from_full_to_a_tenth() -> None:
    assert curve("linear", total=4) == pytest.approx([1.0, 0.7, 0.4, 0.1])
    assert curve("linear", total=6, warmup=2) == pytest.approx([1 / 3, 2 / 3, 1.0, 0.7, 0.4, 0.1])


def test_cosine_is_half_way_down_in_the_middle() -> None:
    assert curve("cosine", total=5) == pytest.approx([1.0, 0.868198, 0.55, 0.231802, 0.1], abs=1e-6)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_run_of_one_step_takes_it_in_full(schedule: Schedule) -> None:
    assert curve(schedule, total=1) == [1.0]


@given(
    step=st.integers(1, 400),
    total=st.integers(1, 200),
    warmup=st.integers(0, 300),
    schedule=st.sampled_from(["constant", "linear", "cosine"]),
)
def test_no_step_stands_still_or_overshoots(step: int, total: int, warmup: int, schedule: Schedule) -> None:
    factor = learning_rate_factor(step, total=total, warmup=warmup, schedule=schedule)
    assert 0 < factor <= 1
    if step >= total and step > warmup and schedule != "constant" and total > warmup + 1:
        assert factor == pytest.approx(0.1)


def test_a_longer_schedule_makes_the_rate_jump_and_a_little_longer_one_does_not() -> None:
    decay = Train(steps=16, schedule="linear", learning_rate=1e-3)
    longer, little, other = (
        decay.model_copy(update=change) for change in ({"steps": 200}, {"steps": 17}, {"warmup": 0})
    )
    said = "this change sets the learning rate of step 17 to 0.00093; without it, it would be 0.0001"
    assert find_jump(17, decay, longer) == said
    assert find_jump(9, decay, little) == find_jump(17, decay, other) == ""
