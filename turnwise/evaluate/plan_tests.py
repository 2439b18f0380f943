"""Tests of an agent's planning, as PDoctor does them: error rates by size, kinds of errors, and their causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import comb, inf
from random import Random
from statistics import fmean
from typing import Any

from turnwise.chat_endpoint import ChatEndpoint
from turnwise.envs.plans.dissection import Cause, dissect
from turnwise.envs.plans.plan_oracle import PlanError
from turnwise.envs.plans.plan_solvers import chance
from turnwise.envs.plans.plan_task import PlanTask
from turnwise.envs.plans.sentence_words import SYNONYMS
from turnwise.evaluate.statistics import wilson_interval
from turnwise.rollout.endpoint_agent import EndpointAgent
from turnwise.rollout.episode import EpisodeSpec, Limits
from turnwise.rollout.scheduler import Scheduler
from turnwise.sources.player import Playing
from turnwise.types import StopReason, Trajectory
from turnwise.waiting import finish

Play = Callable[[Sequence[EpisodeSpec]], Sequence[Trajectory]]
"""Plays episodes with the agent, and returns them in the same order."""
ENV, FAMILY = "plans/order", "plans/"
MOST, TURNS = 300, 50
"""Of requests of one size, and of turns for each (PDoctor's own limits)."""


@dataclass(frozen=True, kw_only=True)
class PlanSuite:
    """Which requests are tried."""

    sizes: Sequence[int] = (3, 4, 5)
    tests: int | None = None
    """For each size; None: as many as PDoctor, min(300, 20 · C(n, 2))."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the environment: protocol, timed, prompt, synonyms and so on."""
    tries: int = 3
    """Variants of a failed request that look for its cause; 0: causes are not looked for."""
    seconds: float = inf
    """An agent that thinks longer about one request has timed out."""
    seed: int = 0

    def specs(self, size: int) -> list[EpisodeSpec]:
        """The episodes of one size."""
        count = self.tests or min(MOST, 20 * comb(size, 2))
        kwargs = {"split": "test", **self.options, "sizes": [size]}
        first = self.seed * 1_000_000
        return [EpisodeSpec(env=ENV, kwargs=kwargs, seed=seed) for seed in range(first, first + count)]


@dataclass(frozen=True, kw_only=True)
class SizeResult:
    """What came out for requests of one size."""

    size: int
    tests: int
    errors: Mapping[PlanError, int]
    causes: Mapping[Cause, int]
    chance: float
    """How often a random order would satisfy them (times of day left aside)."""

    @property
    def failures(self) -> int:
        """Requests that were not satisfied."""
        return sum(self.errors.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        rate = self.failures / self.tests
        low, high = wilson_interval(successes=self.failures, trials=self.tests)
        return {
            "size": self.size,
            "tests": self.tests,
            "error_rate": rate,
            "error_rate_low": low,
            "error_rate_high": high,
            "random_error_rate": 1 - self.chance,
            "errors": {str(kind): self.errors.get(kind, 0) for kind in PlanError},
            "causes": {str(cause): self.causes.get(cause, 0) for cause in Cause},
        }


def try_planner(play: Play, suite: PlanSuite) -> list[SizeResult]:
    """Play the suite with an agent, one size after the other; ValueError if an agent cannot be reached."""
    try:
        return [_try_size(play, suite, size) for size in suite.sizes]
    except ConnectionError as error:
        raise ValueError(str(error)) from error


def plays_endpoint(endpoint: ChatEndpoint, *, seconds: float, concurrency: int, turns: int = TURNS) -> Play:
    """Plays with a chat model behind an address; ConnectionError if it cannot be reached."""
    agent, limits = EndpointAgent(endpoint), Limits(max_turns=turns, act_seconds=seconds)

    async def play(specs: Sequence[EpisodeSpec]) -> list[Trajectory]:
        async with Scheduler(concurrency=concurrency, limits=limits) as scheduler:
            played = await scheduler.run(specs, agent)
        for each in (each for each in played if each.stop is StopReason.ENV_ERROR):
            fault = ConnectionError if each.info.get("culprit") == "agent" else ValueError
            raise fault(str(each.info.get("error", "")))
        return played

    return lambda specs: finish(play(specs))


def plays_model(player: Playing, *, temperature: float | None = None) -> Play:
    """Plays with a model of ours."""

    def play(specs: Sequence[EpisodeSpec]) -> list[Trajectory]:
        groups = player.play(list(specs), temperature=temperature)
        played = {each.id: each for group in groups for each in group.trajectories}
        return [played[spec.id] for spec in specs]

    return play


def error_of(trajectory: Trajectory, *, seconds: float = inf) -> PlanError | None:
    """What went wrong in an episode: a limit that cut a turn means that it was no call."""
    thought = sum(turn.sample_seconds for turn in trajectory.turns)
    if trajectory.stop in (StopReason.MAX_TURNS, StopReason.TIMEOUT) or thought > seconds:
        return PlanError.TIMEOUT
    if trajectory.stop is StopReason.ENV_ERROR:
        raise ValueError("the agent or the environment failed; play an episode with it to see why")
    if trajectory.stop is not StopReason.DONE:
        return PlanError.ACT
    said = trajectory.info["error"]
    return None if said is None else PlanError(said)


def _try_size(play: Play, suite: PlanSuite, size: int) -> SizeResult:
    specs = suite.specs(size)
    played = play(specs)
    errors = [error_of(each, seconds=suite.seconds) for each in played]
    tasks = [PlanTask.from_dict(each) for each in _tasks(specs)]
    failed = [task for task, error in zip(tasks, errors, strict=True) if error is not None]
    causes = _causes(play, suite, specs[0], failed) if suite.tries and failed else []
    return SizeResult(
        size=size,
        tests=len(specs),
        errors=Counter(error for error in errors if error is not None),
        causes=Counter(causes),
        chance=fmean(chance(task.constraints) for task in tasks),
    )


def _tasks(specs: Sequence[EpisodeSpec]) -> list[Mapping[str, Any]]:
    env = specs[0].source.build()
    resets = (env.reset(seed=spec.seed) for spec in specs)
    return [reset[1]["task"] for reset in resets if isinstance(reset, tuple)]


def _causes(play: Play, suite: PlanSuite, first: EpisodeSpec, failed: Sequence[PlanTask]) -> list[Cause]:
    tried = 0

    def passes(tasks: Sequence[PlanTask]) -> list[bool]:
        nonlocal tried
        # Each try has its own number, which is what an agent's random draws depend on.
        specs = [replace(first, task=task.as_dict(), index=tried + n) for n, task in enumerate(tasks, start=1)]
        tried += len(specs)
        return [error_of(each, seconds=suite.seconds) is None for each in play(specs)]

    synonyms = int(suite.options.get("synonyms", SYNONYMS))
    return dissect(failed, passes, Random(f"dissection:{suite.seed}"), tries=suite.tries, synonyms=synonyms)
