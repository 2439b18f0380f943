"""What the episodes of a step say: the `rollout/…` metrics."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnwise.ops.filters import equal_returns
from turnwise.recipe.schema import CONTEXT
from turnwise.sources.judged import env_reward, is_paid_by_judge
from turnwise.types import CUTS, Group, StopReason, Trajectory, mean_reward_parts, mean_scores

_GRAM = 4
"""Tokens in a row that count as repeated text when they come again in the same turn."""


def read_rollout(groups: Sequence[Group], *, version: int) -> dict[str, float]:
    """Success and conduct of the episodes that were sound, and the share of those that were not.

    `version` is the learner's: how much older a turn's sampler was is its lag.
    """
    groups = own_episodes(groups)
    played = [trajectory for group in groups for trajectory in group.trajectories]
    sound = [trajectory for trajectory in played if not trajectory.stop.is_failure]
    metrics = {
        "rollout/episodes": float(len(played)),
        "rollout/tasks": float(len(groups)),
        "rollout/faults": 1 - len(sound) / max(len(played), 1),
    }
    compared = [group.trajectories for group in groups if len(group.trajectories) > 1]
    if compared:
        metrics["rollout/zero_variance"] = sum(map(equal_returns, compared)) / len(compared)
    return metrics | (_outcomes(sound) | _conduct(sound, version) if sound else {})


def own_episodes(groups: Sequence[Group]) -> list[Group]:
    """What the policy played, without what experts and files add to it; all of it where the policy played nothing."""
    own = [replace(group, trajectories=[each for each in group.trajectories if each.is_own]) for group in groups]
    return [group for group in own if group.trajectories] or list(groups)


def find_errors(groups: Sequence[Group], *, culprit: str = "") -> list[str]:
    """What went wrong in the episodes that failed, in their own words; `culprit` asks for one kind."""
    failed = [each for group in groups for each in group.trajectories if each.stop.is_failure]
    return [str(each.info.get("error", "")) for each in failed if culprit in ("", each.info.get("culprit"))]


def find_traceback(groups: Sequence[Group]) -> str:
    """The stack trace of the last episode that failed; empty where nothing was raised."""
    failed = [each for group in groups for each in group.trajectories if each.stop.is_failure]
    return str(failed[-1].info.get("traceback", "")) if failed else ""


def find_ignored(groups: Sequence[Group]) -> dict[str, Any]:
    """What programs behind the gateway asked for and did not get, such as a temperature."""
    found = [each.info.get("ignored") for group in groups for each in group.trajectories]
    return {str(name): value for table in found if isinstance(table, Mapping) for name, value in table.items()}


def explain_ignored(ignored: Mapping[str, Any]) -> str:
    """The same in one line."""
    asked = ", ".join(name if value is True else f"{name}={value}" for name, value in ignored.items())
    return f"the program's calls ask for {asked}; that is ignored, because sampling is the recipe's (docs/gateway.md)"


def explain_failure(env: str, failures: int, last_error: str) -> str:
    """Why a run whose environment does not work is given up."""
    return (
        f"{env} failed in each of the {failures} episodes that it played last, so there is nothing to learn from; the "
        f"last error: {last_error}"
    )


def require_room(groups: Sequence[Group], env: str, context: int | None) -> None:
    """ValueError if the first prompt of every sound episode left no room for a single token."""
    sound = [each for group in own_episodes(groups) for each in group.trajectories if not each.stop.is_failure]
    spoke = (each.stop is not StopReason.CONTEXT_FULL or any(turn.sampled_ids for turn in each.turns) for each in sound)
    if sound and not any(spoke):
        limit = f"the model's own limit, or {CONTEXT}" if context is None else context
        raise ValueError(
            f"no episode of {env} had room for a turn: its first prompt fills rollout.context ({limit} tokens); raise "
            "it, choose a model with more room, or shorten the prompt"
        )


def answered(groups: Sequence[Group]) -> bool:
    """Whether the environment carried any episode through a step to a sound end.

    An episode whose first turn was cut is sound, but says nothing about the environment, which never saw the turn.
    """
    sound = [each for group in own_episodes(groups) for each in group.trajectories if not each.stop.is_failure]
    return any(len(each.turns) > 1 or each.stop in (StopReason.DONE, StopReason.MAX_TURNS) for each in sound)


def _outcomes(sound: Sequence[Trajectory]) -> dict[str, float]:
    metrics = {
        "rollout/success": sum(trajectory.success for trajectory in sound) / len(sound),
        "rollout/reward": sum(trajectory.reward for trajectory in sound) / len(sound),
        **{f"rollout/reward_{name}": value for name, value in mean_reward_parts(sound).items()},
        "rollout/cut": sum(trajectory.stop in CUTS for trajectory in sound) / len(sound),
        **{f"rollout/score_{name}": value for name, value in mean_scores(sound).items()},
        **_zero_sum(sound),
    }
    if any(map(is_paid_by_judge, sound)):
        metrics["rollout/env_reward"] = sum(map(env_reward, sound)) / len(sound)
    return metrics


def _zero_sum(sound: Sequence[Trajectory]) -> dict[str, float]:
    """How often the policy won what it lost itself at other seats; nothing where no game paid several of its seats.

    A game that paid nobody says nothing: it may be a draw, or a task in which all failed together.
    """
    own: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in sound:
        own[trajectory.episode].append(trajectory)
    endings = [[each.last_pay for each in seats] for seats in own.values() if len(seats) > 1]
    paid = [rewards for rewards in endings if any(rewards)]
    return {"rollout/zero_sum": sum(abs(sum(rewards)) < 1e-9 for rewards in paid) / len(paid)} if paid else {}


def _conduct(sound: Sequence[Trajectory], version: int) -> dict[str, float]:
    turns = [turn for trajectory in sound for turn in trajectory.turns]
    metrics = {
        "rollout/turns": len(turns) / len(sound),
        "rollout/tokens": sum(len(turn.sampled_ids) for turn in turns) / len(sound),
        "rollout/valid": sum(turn.valid for turn in turns) / max(len(turns), 1),
        "rollout/repetition": _repetition([turn.sampled_ids for turn in turns]),
    }
    # What no policy sampled, as in demonstrations, has no lag.
    if lags := [version - turn.policy_version for turn in turns if turn.logprobs is not None]:
        metrics |= {"rollout/lag_mean": sum(lags) / len(lags), "rollout/lag_max": float(max(lags))}
    if (perplexity := own_perplexity(sound)) is not None:
        metrics["rollout/perplexity"] = perplexity
    return metrics


def own_perplexity(trajectories: Sequence[Trajectory]) -> float | None:
    """How uncertain the sampler was: exp of minus the mean log-prob of its tokens; None if nobody sampled any."""
    turns = [turn.logprobs for each in trajectories for turn in each.turns if turn.logprobs]
    if not turns:
        return None
    return math.exp(-sum(map(sum, turns)) / sum(map(len, turns)))


def _repetition(turns: Sequence[Sequence[int]]) -> float:
    """The share of runs of four tokens that occurred before in the same turn."""
    total = different = 0
    for ids in turns:
        grams = [tuple(ids[start : start + _GRAM]) for start in range(len(ids) - _GRAM + 1)]
        total, different = total + len(grams), different + len(set(grams))
    return 1 - different / total if total else 0.0
