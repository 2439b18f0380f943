"""The doctor's measurements: rewards, times and lengths, mostly of what the other checks already played."""

from __future__ import annotations

import statistics
from operator import attrgetter

from turnwise.envs.check_play import Outcome, Patient

_GROUP = 8
_SLOW_INLINE_SECONDS = 0.05
_FAST_GROWTH = 500


async def endings(patient: Patient) -> Outcome:
    """No episode seen so far was terminated and truncated at once."""
    for transcript in patient.seen:
        for turn, moment in enumerate(transcript.moments, start=1):
            if moment.terminated and moment.truncated:
                return "note", (
                    f"seed {transcript.seed}, turn {turn}: both terminated and truncated, which counts as terminated; "
                    "set truncated only if the episode could have continued"
                )
    return "pass", "no episode both terminated and truncated"


async def reward_range(patient: Patient) -> Outcome:
    """All rewards of all seats so far are within the declared range."""
    low, high = await patient.ask(attrgetter("reward_range"))
    rewards = [
        reward for moment in patient.moments for reward in (moment.reward, *moment.info.get("rewards", {}).values())
    ]
    if min(rewards) < low - 1e-9 or max(rewards) > high + 1e-9:
        seen = f"[{min(rewards):g}, {max(rewards):g}]"
        return "defect", f"rewards in {seen}, but reward_range is [{low:g}, {high:g}]"
    return "pass", f"[{min(rewards):g}, {max(rewards):g}] within [{low:g}, {high:g}]"


async def group_variance(patient: Patient) -> Outcome:
    """Whether random tries at one task differ in reward: if none ever do, group methods learn nothing."""
    rewards = [(await patient.play_new(patient.random_player(f"try {index}"), 0)).reward for index in range(_GROUP)]
    text = f"{_GROUP} random tries earn {statistics.mean(rewards):.3g} +- {statistics.pstdev(rewards):.3g}"
    return ("pass", text) if len(set(rewards)) > 1 else ("note", f"{text}: no signal for a group baseline")


async def latency(patient: Patient) -> Outcome:
    """How long steps take, and whether that fits where they run."""
    seconds = sorted(moment.seconds for moment in patient.moments)
    middle, slow = statistics.median(seconds), seconds[int(0.95 * (len(seconds) - 1))]
    text = f"a step takes {1000 * middle:.2f} ms (median), {1000 * slow:.2f} ms (95%)"
    place = await patient.ask(attrgetter("execution"))
    if place == "inline" and slow > _SLOW_INLINE_SECONDS:
        return "note", f"{text}: set execution to 'thread' (it waits) or 'process' (it computes)"
    return "pass", f"{text}, {place}"


async def growth(patient: Patient) -> Outcome:
    """How many characters an observation has, and how many it gains per turn."""
    turns = [turn for transcript in patient.seen for turn in range(len(transcript.moments))]
    sizes = [len(moment.observation) for moment in patient.moments]
    slope = statistics.linear_regression(turns, sizes).slope if len(set(turns)) > 1 else 0.0
    text = f"{statistics.mean(sizes):.0f} characters per observation, {slope:+.1f} per turn"
    return ("note" if slope > _FAST_GROWTH else "pass"), text
