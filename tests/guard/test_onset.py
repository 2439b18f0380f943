"""The onset: where a run started to go wrong, and which signal moved first."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.guard.guard_curves import AT_ONCE
from turnwise.guard.onset import SIGNALS
from turnwise.report import find_onset

STEPS = 80


def rows(**columns: Any) -> list[dict[str, Any]]:
    """Rows of 80 steps; a column is a function of the step. Success is healthy unless given."""
    draw = Random(3)
    series = {"rollout/success": lambda _: 0.8 + draw.gauss(0, 0.02), **columns}
    return [
        {"step": step, **{name.replace("__", "/"): of(step) for name, of in series.items()}}
        for step in range(1, STEPS + 1)
    ]


def dying(step: int, *, since: int = 60) -> float:
    return 0.8 if step < since else 0.1


def test_a_run_that_keeps_its_success_has_no_onset() -> None:
    assert find_onset(rows(loss__ratio_max=lambda step: 2.0 if step < 40 else 500.0), []) is None


def test_the_signal_that_moved_first_is_named_with_its_step() -> None:
    metrics = rows(
        rollout__success=dying,
        loss__entropy=lambda step: 1.0 if step < 58 else 0.1,
        train__gradient_norm=lambda step: 0.4 if step < 52 else 9.0,
        loss__ratio_max=lambda step: 2.0 if step < 55 else 500.0,
    )
    onset = find_onset(metrics, [])
    assert onset is not None
    assert (onset.step, onset.signal, onset.source) == (52, "train/gradient_norm", "change")
    assert onset.text.startswith("train/gradient_norm left its band: 9 after a median of 0.4 over the 20 steps")


def test_of_signals_that_move_together_the_one_farther_out_is_named() -> None:
    metrics = rows(
        rollout__success=dying,
        loss__entropy=lambda step: 1.0 if step < 55 else 0.9,
        loss__ratio_max=lambda step: 2.0 if step < 55 else 500.0,
    )
    onset = find_onset(metrics, [])
    assert onset is not None
    assert (onset.step, onset.signal) == (55, "loss/ratio_max")


def test_the_first_guard_incident_comes_before_every_change_of_a_signal() -> None:
    metrics = rows(rollout__success=dying, loss__ratio_max=lambda step: 2.0 if step < 50 else 500.0)
    events = [
        {"step": 70, "kind": "guard", "signal": "entropy", "text": "entropy is gone"},
        {"step": 64, "kind": "guard", "signal": "ratio-tail", "text": "the tail grew"},
        {"step": 1, "kind": "resumed"},
    ]
    onset = find_onset(metrics, events)
    assert onset is not None
    assert (onset.step, onset.signal, onset.source, onset.text) == (64, "ratio-tail", "guard", "the tail grew")


def test_a_fall_that_no_signal_announced_is_marked_at_the_fall() -> None:
    onset = find_onset(rows(rollout__success=dying), [])
    assert onset is not None
    assert onset.signal == "rollout/success"
    assert onset.step == 62  # the median of five steps is low once three of them are


def test_a_steady_drift_and_a_single_spike_are_no_departure() -> None:
    draw = Random(5)
    metrics = rows(
        rollout__success=dying,
        loss__entropy=lambda step: 1.0 - 0.01 * step + draw.gauss(0, 0.01),
        loss__ratio_max=lambda step: 900.0 if step == 50 else 2.0,
    )
    onset = find_onset(metrics, [])
    assert onset is not None
    assert onset.signal == "rollout/success"


def test_a_movement_in_the_good_direction_is_not_blamed() -> None:
    metrics = rows(rollout__success=dying, loss__value_error=lambda step: 0.5 if step < 50 else 0.001)
    onset = find_onset(metrics, [])
    assert onset is not None
    assert onset.signal == "rollout/success"


def test_values_that_were_not_finite_count_as_moved() -> None:
    metrics = rows(rollout__success=dying, train__gradient_norm=lambda step: 0.4 if step < 57 else None)
    onset = find_onset(metrics, [])
    assert onset is not None
    assert (onset.step, onset.signal) == (57, "train/gradient_norm")
    assert "not finite" in onset.text


@pytest.mark.parametrize("count", [0, 1, 4])
def test_short_runs_are_judged_without_a_crash(count: int) -> None:
    assert find_onset(rows()[:count], []) is None


def test_a_run_that_never_succeeded_has_nothing_to_lose() -> None:
    assert find_onset(rows(rollout__success=lambda step: 0.02 if step < 5 else 0.0), []) is None


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_moves_no_signal(seed: int) -> None:
    draw = Random(seed)
    noise = {name.replace("/", "__"): lambda _: 1.0 + draw.gauss(0, 0.1) for name in SIGNALS}
    onset = find_onset(rows(rollout__success=dying, **noise), [])
    assert onset is not None
    assert onset.signal == "rollout/success"


@pytest.mark.parametrize("name", AT_ONCE)
@pytest.mark.parametrize("steps", [2, 3, 4])
def test_a_run_that_died_at_once_has_its_onset_within_two_steps(name: str, steps: int) -> None:
    onset = find_onset(AT_ONCE[name][:steps], [])
    assert onset is not None
    assert onset.step <= 2
    assert onset.source == "change"
