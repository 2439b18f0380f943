"""Evaluation on held-out tasks: which episodes are played, and their metrics with intervals."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from random import Random
from statistics import fmean
from typing import Any, Protocol

import numpy as np

from turnwise.envs.base import listed_tasks
from turnwise.envs.faults import FAULTS
from turnwise.envs.process import EnvSource
from turnwise.evaluate.measures import measure_texts
from turnwise.evaluate.statistics import mean_interval, pass_at_k, wilson_interval
from turnwise.ranks import ALONE, Ranks
from turnwise.recipe.schema import EnvChoice, Recipe
from turnwise.rollout.episode import EpisodeSpec, tries
from turnwise.rollout.scheduler import at_seats
from turnwise.sources.judged import Jury, env_reward, is_paid_by_judge
from turnwise.sources.rollout_metrics import explain_ignored, find_errors, find_ignored, require_room
from turnwise.sources.seeds import HELD_OUT
from turnwise.types import CUTS, POLICY, Group, Trajectory, mean_reward_parts, mean_scores
from turnwise.words import counted

Seats = Mapping[str, Collection[str] | None]
"""The seats of each policy by its name; None: all of them."""


class Plays(Protocol):
    """Plays episodes with the current policy."""

    def play(
        self, specs: list[EpisodeSpec], temperature: float | None = None, *, alone: str | None = None
    ) -> list[Group]:
        """The trajectories of all specs, by task; `alone` plays every seat."""
        ...


def play_specs(recipe: Recipe) -> list[EpisodeSpec]:
    """The held-out episodes of a recipe: the same at every evaluation, so that differences come from the policy.

    If the environment has a limited number of tasks, none is played as two: evaluation takes `eval.episodes` different
    tasks, or all of them.
    """
    if not recipe.eval.episodes:
        return []
    env = recipe.held_out_env
    source, first = env.source(env.held_out), 0 if env.held_out else HELD_OUT.start
    specs = [
        EpisodeSpec.of(source, seed=seed, task=task)
        for seed, task in enumerate(_choose_tasks(source, recipe.eval.episodes), start=first)
    ]
    return [spec for task in specs for spec in tries(task, recipe.eval.tries)]


def fewer_tasks(recipe: Recipe, specs: Sequence[EpisodeSpec]) -> str:
    """The warning if the environment has fewer held-out tasks than the recipe asks for; else empty."""
    count, asked = len(specs) // recipe.eval.tries, recipe.eval.episodes
    if count == asked:
        return ""
    return (
        f"{recipe.held_out_env.id} has {counted(count, 'different held-out task')}, fewer than eval.episodes={asked}: "
        "all are played; eval.tries=8 plays each eight times"
    )


def trained_tasks(recipe: Recipe, trained: EnvChoice) -> str:
    """The warning if some of the tasks to play are among those of a run's training; else empty."""
    env = recipe.held_out_env
    if env.id != trained.id or (env.kwargs, env.held_out) == (trained.kwargs, trained.held_out):
        return ""
    played = [_written_out(spec.task) for spec in play_specs(recipe)[:: recipe.eval.tries]]
    if not any(played) and env.kwargs.get("held_out") != trained.kwargs.get("held_out"):
        return "some tasks may belong to this run's training, which held out others; leave env.kwargs.held_out out"
    known: Sequence[Any] = ()
    with suppress(*FAULTS):  # what it was trained on may be gone
        known = _list_tasks(trained.source()) or ()
    seen = {text for text in map(_written_out, known) if text}.intersection(played)
    if not seen:
        return ""
    return (
        f"{len(seen)} of the {counted(len(played), 'task')} to play belong to this run's training, which held out "
        "others; leave out what changes env.kwargs and env.held_out, or name tasks that it cannot know"
    )


def _written_out(task: Any) -> str:
    """A task that is given as a whole, as text; empty for a number or a name, which may stand for another elsewhere."""
    return json.dumps(task, sort_keys=True, default=str) if isinstance(task, Mapping) else ""


def _list_tasks(source: EnvSource) -> Sequence[Any] | None:
    env = source.build()
    try:
        return listed_tasks(env)
    finally:
        with suppress(*FAULTS):  # the tasks are already read
            env.close()


def _choose_tasks(source: EnvSource, count: int) -> list[Any]:
    """Different tasks, at most `count`; None for each if the seed alone decides the task."""
    tasks = _list_tasks(source)
    if tasks is None:
        return [None] * count
    # Files are often sorted by topic or length, so the first questions are not a fair sample.
    return Random("held-out tasks").sample(tasks, min(count, len(tasks)))


def evaluate(
    player: Plays,
    recipe: Recipe,
    seats: Seats | None = None,
    *,
    watch: Callable[[list[Group]], None] | None = None,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """Play the held-out episodes and summarize them; empty if the recipe has none. `watch` sees the episodes.

    `seats` are those of each policy by name; by default one policy plays all.

    Raises ValueError with the environment's error if every episode failed.
    """
    specs = play_specs(recipe)
    if not specs:
        return {}
    groups, played = play_all_policies(player, recipe, specs, seats or {POLICY: None}, Jury.of(recipe, ranks))
    if watch is not None:
        watch(groups)
    summaries = {
        name: summarize(own, tries=recipe.eval.tries, measures=recipe.eval.measures) for name, own in played.items()
    }
    metrics = mean_over_policies(recipe, list(summaries.values()))
    for name, summary in summaries.items():
        metrics |= {f"{name}/{key}" if len(summaries) > 1 else key: value for key, value in summary.items()}
    if any(value == 1 for name, value in metrics.items() if name.endswith("eval/faults")):
        raise ValueError(f"every episode of {recipe.held_out_env.id} failed; the last error: {find_errors(groups)[-1]}")
    return metrics


def play_all_policies(
    player: Plays, recipe: Recipe, specs: list[EpisodeSpec], seats: Seats, jury: Jury
) -> tuple[list[Group], dict[str, list[Group]]]:
    """All episodes, and those of each policy: at its seats, or with `eval.env` those that it played alone.

    Raises ValueError if no episode had room for a turn.
    """
    temperature = recipe.eval.temperature
    if recipe.eval.env is None:
        groups = player.play(specs, temperature=temperature)
        require_room(groups, recipe.env.id, recipe.rollout.context)
        jury.judge(groups)
        return groups, {name: at_seats(groups, played) for name, played in seats.items()}
    alone = {name: player.play(specs, temperature=temperature, alone=name) for name in seats}
    groups = [group for played in alone.values() for group in played]
    require_room(groups, recipe.eval.env.id, recipe.rollout.context)
    jury.judge(groups)
    return groups, alone


def mean_over_policies(recipe: Recipe, summaries: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means under the plain names, where several policies play the same tasks alone; else nothing."""
    if recipe.eval.env is None or len(summaries) < 2:
        return {}
    common = [name for name in summaries[0] if all(name in summary for summary in summaries)]
    return {name: fmean(summary[name] for summary in summaries) for name in common}


def remarks(recipe: Recipe, metrics: Mapping[str, float], groups: Sequence[Group]) -> Iterator[str]:
    """What the numbers of an evaluation do not say."""
    tasks = len({group.task_id for group in groups})
    if "eval/tasks" in metrics and tasks < recipe.eval.episodes:
        there = counted(tasks, "held-out task")
        often = "once; --tries 8 plays it eight times" if recipe.eval.tries == 1 else f"{recipe.eval.tries} times"
        yield f"eval.episodes is {recipe.eval.episodes}, but the environment has {there}; each was played {often}"
    if ignored := find_ignored(groups):
        yield explain_ignored(ignored)


def summarize(groups: Sequence[Group], *, tries: int = 1, measures: Collection[str] = ()) -> dict[str, float]:
    """The episodes of an evaluation as `eval/…` metrics, omitting those without data.

    Episodes that failed because of the environment count only in `eval/faults` (their share). Every task weighs the
    same, and the 95% intervals are over tasks: tries at one task are not independent.
    """
    played = [trajectory for group in groups for trajectory in group.trajectories]
    tasks = [sound for group in groups if (sound := [one for one in group.trajectories if not one.stop.is_failure])]
    sound = [trajectory for task in tasks for trajectory in task]
    metrics = {"eval/episodes": float(len(played))}
    if any(trajectory.task is not None for trajectory in played):
        metrics["eval/tasks"] = float(len(groups))
    if played:
        metrics["eval/faults"] = 1 - len(sound) / len(played)
    if sound:
        metrics |= _outcomes(tasks) | _conduct(sound) | _pass_at(tasks, tries)
        if tries > 1:
            metrics["eval/distinct_solutions"] = fmean(map(_distinct_solutions, tasks))
        metrics |= {f"eval/score_{name}": value for name, value in mean_scores(sound).items()}
        # A part that is called low or high would read as the interval of the reward.
        metrics = {f"eval/reward_{name}": value for name, value in _mean_parts(tasks).items()} | metrics
        metrics |= measure_texts(groups, measures)
    return metrics


def _outcomes(tasks: list[list[Trajectory]]) -> dict[str, float]:
    success = _task_means(tasks, lambda trajectory: trajectory.success)
    reward = _task_means(tasks, lambda trajectory: trajectory.reward)
    rate, episodes = float(success.mean()), sum(len(task) for task in tasks)
    low, high = wilson_interval(rate=rate, trials=_effective_episodes(success, episodes))
    metrics = {"eval/success": rate, "eval/success_low": low, "eval/success_high": high}
    metrics["eval/reward"] = float(reward.mean())
    if len(reward) > 1:
        # A mean cannot leave the range of possible rewards, but Student's interval of few tasks can.
        low, high = np.clip(mean_interval(reward), reward.min(), reward.max())
        metrics["eval/reward_low"], metrics["eval/reward_high"] = float(low), float(high)
    if any(map(is_paid_by_judge, (each for task in tasks for each in task))):
        metrics["eval/env_reward"] = float(_task_means(tasks, env_reward).mean())
    return metrics


def _mean_parts(tasks: list[list[Trajectory]]) -> dict[str, float]:
    """The parts of the reward; every task weighs the same, as in the reward itself, so that they add up to it."""
    by_task = [mean_reward_parts(task) for task in tasks]
    names = dict.fromkeys(name for parts in by_task for name in parts)
    return {name: fmean(parts.get(name, 0.0) for parts in by_task) for name in names}


def _task_means(tasks: list[list[Trajectory]], measure: Callable[[Trajectory], float]) -> np.ndarray:
    return np.array([fmean(map(measure, task)) for task in tasks])


def _effective_episodes(success: np.ndarray, episodes: int) -> float:
    """How many independent episodes would give the same precision as these tasks: p (1 - p) / Var(mean).

    With one try per task this is the number of tasks, and the Wilson interval is the usual one. With more tries it is
    between the number of tasks (tries at a task end alike) and of episodes (tries differ as tasks do).
    """
    rate, variance = success.mean(), success.var() / len(success)
    if variance == 0:  # no variation in the sample does not prove there is none
        return float(len(success))
    return float(np.clip(rate * (1 - rate) / variance, len(success), episodes))


def _conduct(sound: list[Trajectory]) -> dict[str, float]:
    turns = [turn for trajectory in sound for turn in trajectory.turns]
    metrics = {
        "eval/turns": len(turns) / len(sound),
        "eval/tokens": sum(len(turn.sampled_ids) for turn in turns) / len(sound),
        "eval/cut": sum(each.stop in CUTS for each in sound) / len(sound),
    }
    if turns:
        metrics["eval/valid"] = sum(turn.valid for turn in turns) / len(turns)
    return metrics


def _distinct_solutions(task: list[Trajectory]) -> int:
    """How many different sequences of actions solved the task."""
    return len({tuple(turn.action for turn in each.turns) for each in task if each.success})


def _pass_at(tasks: list[list[Trajectory]], tries: int) -> dict[str, float]:
    """Pass@k for k = 1, 2, 4 … and `tries`, over the tasks with at least k valid tries."""
    metrics: dict[str, float] = {}
    for k in sorted({*(2**power for power in range(tries.bit_length())), tries}):
        rates = [
            pass_at_k(len(task), sum(trajectory.success for trajectory in task), k) for task in tasks if len(task) >= k
        ]
        if rates:
            metrics[f"eval/pass@{k}"] = fmean(rates)
    return metrics
