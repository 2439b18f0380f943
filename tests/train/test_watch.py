"""Where the time of a step goes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from turnwise.train import watch


def test_what_is_recorded_makes_no_step_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1.0, 5.0, 5.0, 8.0, 10.0])
    monkeypatch.setattr(watch, "time", SimpleNamespace(perf_counter=moments.__next__))
    step = watch.Watch()
    with step.timing("rollout"):
        pass
    with step.timing("record"):
        pass
    found = step.metrics([], tokens=14, playing=2.0)
    assert (found["time/rollout"], found["time/step"], found["time/tokens_per_second"]) == (4.0, 7.0, 2.0)
