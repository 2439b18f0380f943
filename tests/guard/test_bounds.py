"""Absolute bounds: what they call lost, and what they leave to chance and to learning."""

from typing import Any

import pytest

from turnwise.guard.bounds import BOUNDS, Crossing, find_crossings


def rows(metric: str, *values: float, **others: float) -> list[dict[str, Any]]:
    named = {name.replace("__", "/"): value for name, value in others.items()}
    return [{"step": step, metric: value, **named} for step, value in enumerate(values, 1)]


def crossed(metric: str, *values: float, **others: float) -> Crossing | None:
    """What the last of these values crosses."""
    *before, now = rows(metric, *values, **others)
    return next(iter(find_crossings(before, now)), None)


@pytest.mark.parametrize("metric", [metric for metric, bound in BOUNDS.items() if bound.sound is None])
def test_a_bound_without_a_past_holds_in_the_first_step(metric: str) -> None:
    limit = BOUNDS[metric].limit
    assert crossed(metric, limit) is None
    found = crossed(metric, 1.5 * limit)
    assert found is not None
    assert found.text == f"{BOUNDS[metric].label} {1.5 * limit:.3g} at step 1, above the bound of {limit:g}"


@pytest.mark.parametrize("metric", [metric for metric, bound in BOUNDS.items() if bound.sound is not None])
def test_what_a_run_starts_with_is_not_lost(metric: str) -> None:
    beyond = 0.0 if BOUNDS[metric].below else 1.0
    assert crossed(metric, beyond, beyond, rollout__tasks=128) is None


def test_success_is_lost_when_so_many_failures_are_not_chance() -> None:
    assert crossed("rollout/success", 0.4, 0.0, rollout__tasks=16) is not None  # 0.6 ** 16 = 0.0003
    assert crossed("rollout/success", 0.4, 0.0, rollout__tasks=8) is None  # 0.6 ** 8 = 0.02
    assert crossed("rollout/success", 0.4, 0.0, 0.0, rollout__tasks=8) is not None
    assert crossed("rollout/success", 0.4, 0.01, rollout__tasks=128) is None
    assert crossed("rollout/success", 0.09, 0.0, rollout__tasks=1024) is None


def test_the_weakest_of_the_recent_steps_is_what_was_before() -> None:
    found = crossed("rollout/success", 0.05, 0.5, 0.3, 0.6, 0.7, 0.8, 0.0, rollout__tasks=64)
    assert found is not None
    assert found.text == "success 0 at step 7, 0.3 before"


def test_entropy_that_vanishes_is_a_loss_only_where_success_falls() -> None:
    solved = [{"step": 1, "loss/entropy": 0.08, "rollout/success": 0.9}]
    now = {"step": 2, "loss/entropy": 0.001, "rollout/success": 0.95}
    assert find_crossings(solved, now) == []
    assert [each.metric for each in find_crossings(solved, {**now, "rollout/success": 0.5})] == ["loss/entropy"]


def test_every_bound_says_why() -> None:
    assert [metric for metric, bound in BOUNDS.items() if len(bound.why) < 40] == []
