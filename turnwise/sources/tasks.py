"""Tasks to try: a sampler's request, its knowledge, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from turnwise.sources.seeds import training_seed


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task: an environment seed, and optionally a listed task or other arguments."""

    seed: int
    task: Any = None
    """One of `Env.list_tasks()`; None: the seed decides."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of the environment that differ from the recipe's."""
    name: str = ""
    """The name that success is counted under; tasks may share it. Empty: not counted."""
    level: float | None = None
    """How far along or how hard it is; the mean of a step is the metric `source/level`."""


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Which tasks are wanted: `count` of them for this step, which has drawn `drawn` already."""

    seed: int
    """The run's seed."""
    step: int
    count: int
    most: int
    """Tasks that a step may draw in all."""
    list_tasks: Callable[[], Sequence[Any]]
    """Every task of the environment; ValueError if it has no list."""
    drawn: int = 0

    @property
    def numbers(self) -> range:
        """A number for each task, unique in the run."""
        first = (self.step - 1) * self.most + self.drawn
        return range(first, first + self.count)

    def seed_of(self, number: int) -> int:
        """The environment's seed for a number."""
        return training_seed(self.seed, number)

    def generator(self) -> Random:
        """A generator for this step: the same for each draw, so that later draws can continue earlier ones."""
        return Random(f"tasks:{self.seed}:{self.step}")


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How the policy did at a task: `Tally(tries=24, success=0.4)`."""

    tries: int
    success: float
    """A running mean in which the newest step counts for at least a fifth: the policy changes."""


Measured = Mapping[str, Tally]
"""The tally of each name, up to the last completed step."""


class TaskSampler(Protocol):
    """Chooses tasks. It is a value: the same draw and the same measurements give the same tasks."""

    def choose(self, draw: Draw, measured: Measured) -> Sequence[Task]:
        """`draw.count` tasks."""
        ...
