"""Timing of a training step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from turnwise.types import Group


class Watch:
    """Started with the step: `with watch.timing("rollout"): …`, then `watch.metrics(…)`."""

    def __init__(self) -> None:
        self._started, self._spent = time.perf_counter(), dict[str, float]()

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Count the time inside under this name."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0.0) + time.perf_counter() - started

    def metrics(self, groups: list[Group], *, tokens: float, playing: float) -> dict[str, float]:
        """The `time/…` metrics; `playing` are the engine's own seconds."""
        # What is recorded, and how often, must not make equal steps look slower.
        total = time.perf_counter() - self._started - self._spent.get("record", 0.0)
        rollout, score, update = (self._spent.get(name, 0.0) for name in ("rollout", "score", "update"))
        turns = [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
        sampled = sum(len(turn.sampled_ids) for turn in turns)
        return {
            "time/step": total,
            "time/rollout": rollout,
            "time/score": score,
            "time/update": update,
            "time/model": playing + score + update,
            # Environments cannot account for more than the engine left idle.
            "time/env": min(sum(turn.env_seconds for turn in turns), max(rollout - playing, 0.0)),
            "time/tokens_per_second": (tokens + sampled) / total,
        }
