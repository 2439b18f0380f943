"""The progress of a run: its rows so far, the best of them, what was lost, and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from turnwise.recipe.schema import Stage
from turnwise.runs.rows import Row, number

RECENT = 20
"""Steps used to estimate the time left."""


@dataclass(kw_only=True)
class RunProgress:
    """The steps and evaluations of one run: `RunProgress(steps=100)`, then `add(row)` after every step."""

    steps: int
    stage: Stage = "reinforcement"
    """In other stages nothing is played: success in the rows is that of files or experts, so it is not shown."""
    imitated: bool = False
    """Whether an imitation stage came first."""
    rows: Sequence[Row] = ()
    evaluations: Sequence[Row] = ()
    clock: Callable[[], float] = time.monotonic
    _seconds: list[float] = field(default_factory=list[float])
    _last: float | None = None

    def add(self, row: Row) -> None:
        """Add a step. A step that was there before came back after a restore: what followed it is dropped."""
        self.rows = [*_before(self.rows, row), row]
        self.evaluations = [each for each in self.evaluations if step_of(each) <= step_of(row)]
        now = self.clock()
        # Loading and the first evaluation come before the first step, so its own time is a better estimate.
        seconds = number(row, "time/step") if self._last is None else now - self._last
        self._seconds = [*self._seconds, seconds or 0.0][-RECENT:]
        self._last = now

    def add_evaluation(self, row: Row) -> None:
        """One more evaluation of held-out tasks."""
        self.evaluations = [*_before(self.evaluations, row), row]

    @property
    def plays(self) -> bool:
        """Whether the policy plays what it learns from."""
        return self.stage == "reinforcement"

    @property
    def step(self) -> int:
        """The last finished step."""
        return step_of(self.rows[-1]) if self.rows else 0

    @property
    def barren(self) -> str:
        """Why nothing can have been learned, in words: every episode of every step got the same reward."""
        earned = {number(row, "rollout/reward") for row in self.rows}
        # If every episode failed, no reward was measured: the environment's error explains that. The mean of a single
        # step says little by itself: unless it is 0, its episodes may have earned different rewards.
        if not self.plays or None in earned or len(earned) != 1 or (len(self.rows) == 1 and earned != {0.0}):
            return ""
        if any(number(row, "rollout/success") or _differ(row) for row in self.rows):
            return ""
        cut = max((number(row, "rollout/cut") or 0.0) for row in self.rows)
        limits = "rollout.max_turns, rollout.max_tokens or rollout.context"
        why = f"; up to {cut:.0%} of a step's episodes ran into a limit ({limits})" if cut else ""
        first = "longer imitation (sft.demonstrations, sft.epochs)" if self.imitated else "imitation first (sft)"
        return (
            f"No episode succeeded and all got the same reward, so there was nothing to learn from{why}. "
            f"Try an easier task, or {first}."
        )

    @property
    def best(self) -> Row | None:
        """The row with the highest success; the first of equals."""
        known = [row for row in self.rows if self.plays and number(row, "rollout/success") is not None]
        return max(known, key=lambda row: number(row, "rollout/success") or 0.0, default=None)

    @property
    def lost(self) -> int:
        """Episodes lost to faults of the environment, which enter no batch."""
        return sum(map(lost_in, self.rows))

    @property
    def seconds_left(self) -> float | None:
        """Time until the last step at the recent pace."""
        if not self._seconds:
            return None
        return max(0, self.steps - self.step) * sum(self._seconds) / len(self._seconds)

    @property
    def success(self) -> list[tuple[int, float]]:
        """The curve: step and success, if known."""
        known = ((step_of(row), number(row, "rollout/success")) for row in self.rows)
        return [(step, value) for step, value in known if value is not None and self.plays]


def step_of(row: Row) -> int:
    """The step that a row belongs to."""
    return int(row.get("step") or 0)


def lost_in(row: Row) -> int:
    """Episodes of one step that were lost to faults."""
    return round((number(row, "rollout/faults") or 0.0) * (number(row, "rollout/episodes") or 0.0))


def _differ(row: Row) -> bool:
    """Whether tries at the same task are known to have earned different rewards."""
    equal = number(row, "rollout/zero_variance")
    return equal is not None and equal < 1


def _before(rows: Sequence[Row], row: Row) -> list[Row]:
    return [each for each in rows if step_of(each) < step_of(row)]
