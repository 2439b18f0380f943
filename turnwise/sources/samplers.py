"""The task samplers: in order, by stages, by measured difficulty, or user-defined."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from turnwise.call_options import mistake_in_options
from turnwise.outside import load_class
from turnwise.sources.tasks import Draw, Measured, Task, TaskSampler

Share = Annotated[float, Field(ge=0, le=1)]


class _Options(BaseModel):
    """Base of samplers: a value whose fields are its options."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Uniform(_Options):
    """One task after the other, none twice."""

    def choose(self, draw: Draw, measured: Measured) -> list[Task]:
        """The next seeds."""
        return [Task(seed=draw.seed_of(number)) for number in draw.numbers]


class Epochs(_Options):
    """Every listed task once, in a new order each time round.

    Where a row refills its batch, tasks that were set aside for a refill and not needed wait for another round.
    """

    def choose(self, draw: Draw, measured: Measured) -> list[Task]:
        """The next tasks of the round."""
        listed = draw.list_tasks()
        chosen: list[Task] = []
        for number in draw.numbers:
            epoch, place = divmod(number, len(listed))
            chosen.append(Task(seed=draw.seed_of(number), task=listed[_order(draw.seed, epoch, len(listed))[place]]))
        return chosen


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, count: int) -> tuple[int, ...]:
    """The places of the tasks in one time round."""
    return tuple(Random(f"epochs:{seed}:{epoch}").sample(range(count), count))


class Stage(_Options):
    """One stage of a curriculum: what it plays and when it ends."""

    kwargs: dict[str, Any] = {}
    """Arguments of the environment."""
    seeds: int | None = Field(default=None, ge=1)
    """Play only this many different seeds."""
    tasks: tuple[int, int] | None = None
    """Play only these of the environment's listed tasks: from the first number up to the second."""
    until: int | None = Field(default=None, ge=1)
    """The last step of the stage."""
    success: Share | None = None
    """The stage ends when the policy reaches this success..."""
    least: int = Field(default=64, ge=1)
    """... in at least this many tries."""

    def is_over(self, place: int, draw: Draw, measured: Measured) -> bool:
        """Whether the curriculum has passed it."""
        tally = measured.get(_stage_name(place))
        learnt = self.success is not None and tally is not None and tally.tries >= self.least
        passed = learnt and tally is not None and self.success is not None and tally.success >= self.success
        return passed or (self.until is not None and draw.step > self.until)

    def task(self, place: int, number: int, draw: Draw) -> Task:
        """The stage's task for a number."""
        number = number if self.seeds is None else number % self.seeds
        listed = None
        if self.tasks is not None:
            chosen = draw.list_tasks()[slice(*self.tasks)]
            if not chosen:
                raise ValueError(
                    f"source.tasks.stages: the environment has no tasks {self.tasks[0]} to {self.tasks[1]}"
                )
            listed = chosen[number % len(chosen)]
        seed, name = draw.seed_of(number), _stage_name(place)
        return Task(seed=seed, task=listed, kwargs=self.kwargs, name=name, level=float(place))


class Curriculum(_Options):
    """Stages that are played one after the other; the last one has no end."""

    stages: tuple[Stage, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _ends(self) -> Curriculum:
        for place, stage in enumerate(self.stages[:-1]):
            if stage.until is None and stage.success is None:
                raise ValueError(f"stage {place} has no end; give it until (a step) or success (a share)")
        return self

    def choose(self, draw: Draw, measured: Measured) -> list[Task]:
        """Tasks of the first stage that is not over."""
        places = range(len(self.stages) - 1)
        place = next((each for each in places if not self.stages[each].is_over(each, draw, measured)), len(places))
        return [self.stages[place].task(place, number, draw) for number in draw.numbers]


class Difficulty(_Options):
    """Tasks of a fixed set, those more often whose success is near `target`.

    A task weighs 1 where its success is `target` or unknown, `floor` where it is as far from that as can be, and in
    between by its distance. A step draws without replacement until the set is used up.
    """

    seeds: int | None = Field(default=None, ge=1)
    """The number of seeds in the set; None: the environment's listed tasks."""
    target: Share = 0.5
    floor: float = Field(default=0.05, gt=0, le=1)

    def choose(self, draw: Draw, measured: Measured) -> list[Task]:
        """The next tasks in an order drawn once per step."""
        listed = draw.list_tasks() if self.seeds is None else None
        names = [f"task-{place}" for place in range(self.seeds or len(listed or ()))]
        rng = draw.generator()
        # The largest of u^(1/w) first: weighted sampling without replacement (Efraimidis and Spirakis, 2006).
        keys = [rng.random() ** (1 / self._weight(measured, name)) for name in names]
        order = sorted(range(len(names)), key=lambda place: -keys[place])
        places = [order[number % len(order)] for number in range(draw.drawn, draw.drawn + draw.count)]
        return [self._task(place, names[place], listed, draw, measured) for place in places]

    def _weight(self, measured: Measured, name: str) -> float:
        success = measured[name].success if name in measured else self.target
        return max(self.floor, 1 - abs(success - self.target) / max(self.target, 1 - self.target))

    def _task(self, place: int, name: str, listed: Sequence[Any] | None, draw: Draw, measured: Measured) -> Task:
        level = measured[name].success if name in measured else None
        task = None if listed is None else listed[place]
        return Task(seed=draw.seed_of(place), task=task, name=name, level=level)


SAMPLERS: Mapping[str, type[TaskSampler]] = {
    "uniform": Uniform,
    "epochs": Epochs,
    "curriculum": Curriculum,
    "difficulty": Difficulty,
}


def make_sampler(kind: str, options: Mapping[str, Any]) -> TaskSampler:
    """The sampler of this kind, or a user-defined `package.module:Class`; ValueError names the fix."""
    make = _find(kind)
    if mistake := mistake_in_options(make, options):
        raise ValueError(f"source.tasks: {kind}: {mistake}")
    try:
        return make(**options)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("source.tasks", *first["loc"])))
        raise ValueError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from None
    except TypeError as error:
        raise ValueError(f"source.tasks: {kind} cannot be made from its options: {error}") from None


def _find(kind: str) -> type[TaskSampler]:
    if kind in SAMPLERS:
        return SAMPLERS[kind]
    if ":" in kind:
        return load_class(kind, key="source.tasks", methods=("choose",))
    close = difflib.get_close_matches(kind, SAMPLERS, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    there = f"There are {', '.join(SAMPLERS)}, and package.module:Class is yours."
    raise ValueError(f"source.tasks: unknown kind {kind!r}; {hint}{there}")


def _stage_name(place: int) -> str:
    return f"stage-{place}"
