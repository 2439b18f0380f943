"""Why did an agent fail at a request? PDoctor's Algorithm 2: change one thing at a time until it succeeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from random import Random

from turnwise.envs.plans.plan_task import PlanTask, change_topic, restructure, reword
from turnwise.envs.plans.sentence_words import SYNONYMS

Passes = Callable[[Sequence[PlanTask]], Sequence[bool]]
"""Plays requests and says which were satisfied."""
RERUNS = 3
"""Tries at the same request."""


class Cause(StrEnum):
    """What made the agent fail, in the order in which causes are looked for."""

    PROBABILITY = "probability"
    """Another try at the same request succeeds."""
    TERMINAL = "terminal"
    """The same sentences in other words."""
    TOPIC = "topic"
    """The same sentences about other activities."""
    STRUCTURE = "structure"
    """Other sentences that ask for the same."""
    CONSTRAINT = "constraint"
    """None of these: what is asked for is too hard."""


def dissect(
    tasks: Sequence[PlanTask], passes: Passes, rng: Random, *, tries: int = 3, synonyms: int = SYNONYMS
) -> list[Cause]:
    """The cause of each failure: the first whose change makes the agent succeed at least once."""
    stages: dict[Cause, Callable[[PlanTask], list[PlanTask]]] = {
        Cause.PROBABILITY: lambda task: [task] * RERUNS,
        Cause.TERMINAL: lambda task: [reword(task, rng, synonyms) for _ in range(tries)],
        Cause.TOPIC: lambda task: [change_topic(task, rng, synonyms) for _ in range(tries)],
        Cause.STRUCTURE: lambda task: [restructure(task, rng, synonyms)],
    }
    causes = [Cause.CONSTRAINT for _ in tasks]
    for cause, vary in stages.items():
        open_ = [place for place, known in enumerate(causes) if known is Cause.CONSTRAINT]
        variants = [(place, variant) for place in open_ for variant in vary(tasks[place])]
        results = passes([variant for _, variant in variants]) if variants else []
        for (place, _), passed in zip(variants, results, strict=True):
            causes[place] = cause if passed else causes[place]
    return causes
