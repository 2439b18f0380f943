"""One request: its words, its actions, and what a plan must satisfy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from random import Random
from typing import Any

from turnwise.envs.plans.activities import NO_TOPIC, draw_names, draw_topic
from turnwise.envs.plans.orderings import Constraints
from turnwise.envs.plans.plan_solvers import BuiltInSolver, Durations, conflict
from turnwise.envs.plans.sentence_parser import parse_request
from turnwise.envs.plans.sentence_words import SYNONYMS
from turnwise.envs.plans.sentences import Paragraph, Wording, constraints_of
from turnwise.envs.plans.synthesis import GRAMMARS, OPENS, day, draw_durations, same_demands, synthesise


@dataclass(frozen=True, kw_only=True)
class PlanTask:
    """`PlanTask(topic="", actions=("a", "b"), text="b precedes a .")`; the text alone says what is asked for."""

    topic: str
    """A profession; empty where actions are letters."""
    actions: tuple[str, ...]
    text: str
    minutes: tuple[int, ...] | None = None
    """The hidden duration of each action; None in requests without times."""

    @cached_property
    def paragraph(self) -> Paragraph:
        """The tree of the text."""
        return parse_request(self.text, self.actions)

    @cached_property
    def constraints(self) -> Constraints:
        """What the text demands; with times also that the day ends."""
        asked = constraints_of(self.paragraph, len(self.actions))
        return asked if self.minutes is None else asked | day(len(self.actions))

    @property
    def durations(self) -> Durations | None:
        """Minutes by action."""
        return None if self.minutes is None else dict(enumerate(self.minutes))

    def as_dict(self) -> dict[str, Any]:
        """The plain form that `info["task"]` has and `reset(task=…)` takes."""
        return asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> PlanTask:
        """Rebuild a task, even from JSON; ValueError if it cannot be read or has no plan."""
        known = {entry.name for entry in fields(cls)}
        if not isinstance(given, Mapping) or set(given) | {"minutes"} != known:
            raise ValueError(f"task= must be a dict with the keys {', '.join(sorted(known))}, as in info['task']")
        minutes = given.get("minutes")
        task = cls(
            topic=str(given["topic"]),
            actions=tuple(map(str, given["actions"])),
            text=str(given["text"]),
            minutes=None if minutes is None else tuple(map(int, minutes)),
        )
        if task.minutes is not None and len(task.minutes) != len(task.actions):
            raise ValueError(f"minutes has {len(task.minutes)} entries for {len(task.actions)} actions; give one each")
        _require_plan(task)
        return task


def draw_task(
    rng: Random,
    count: int,
    *,
    sentences: int | None,
    timed: bool,
    letters: bool,
    synonyms: int = SYNONYMS,
    grammar: str = "full",
) -> PlanTask:
    """A random request about `count` actions that has a plan; by default up to one sentence less than actions."""
    topic = NO_TOPIC if letters else draw_topic(rng)
    names = draw_names(rng, topic, count)
    durations = draw_durations(rng, count) if timed else None
    paragraph = Paragraph()
    while not paragraph:
        most = sentences or max(1, count - 1)
        paragraph = synthesise(rng, count, sentences=most, durations=durations, grammar=GRAMMARS[grammar])
    minutes = tuple(durations.values()) if durations else None
    return PlanTask(topic=topic, actions=names, text=_say(rng, paragraph, names, letters, synonyms), minutes=minutes)


def reword(task: PlanTask, rng: Random, synonyms: int = SYNONYMS) -> PlanTask:
    """The same sentences in other words."""
    return replace(task, text=_say(rng, task.paragraph, task.actions, not task.topic, synonyms))


def change_topic(task: PlanTask, rng: Random, synonyms: int = SYNONYMS) -> PlanTask:
    """The same sentences about other activities."""
    topic = draw_topic(rng, other_than=task.topic) if task.topic else NO_TOPIC
    names = draw_names(rng, topic, len(task.actions))
    return replace(task, topic=topic, actions=names, text=_say(rng, task.paragraph, names, not topic, synonyms))


def restructure(task: PlanTask, rng: Random, synonyms: int = SYNONYMS) -> PlanTask:
    """Other sentences that ask for the same."""
    paragraph = same_demands(rng, constraints_of(task.paragraph, len(task.actions)))
    return replace(task, text=_say(rng, paragraph, task.actions, not task.topic, synonyms))


def _say(rng: Random, paragraph: Paragraph, names: tuple[str, ...], spaced: bool, synonyms: int) -> str:
    wording = Wording(names, rng, synonyms=synonyms)
    return wording.spaced(paragraph) if spaced else wording.prose(paragraph)


def _require_plan(task: PlanTask) -> None:
    solver = BuiltInSolver()
    if solver.solve(task.constraints, task.durations, start=OPENS) is None:
        core = conflict(task.constraints, solver, task.durations, start=OPENS)
        orders = [f"{task.actions[one]} before {task.actions[other]}" for one, other in sorted(core.orders)]
        times = [f"{task.actions[each]} at its times" for each, _ in sorted(core.ends_by | core.starts_from)]
        raise ValueError(
            f"the request has no plan: it asks for {' and '.join((orders + times)[:6])}; change one of them"
        )
