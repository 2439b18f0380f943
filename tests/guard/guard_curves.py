"""Training curves to try the guard on: runs that learn, each in its own way, and the ways in which runs break."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

Row = dict[str, float]
Rows = list[Row]
Break = Callable[[Row, int], Row]
"""What a failure makes of the healthy row, and how many steps it has lasted (0 in its first)."""


def healthy_run(seed: int, *, steps: int = 30) -> Rows:
    """A run that learns. Seeds differ in speed, noise, reward, group size, warm-up, and some dip and recover."""
    rng = random.Random(f"healthy:{seed}")
    episodes, group, unit = rng.choice([64, 128]), rng.choice([1, 8]), rng.choice(["one", "sign", "shaped"])
    start, end = rng.uniform(0.05, 0.4), rng.uniform(0.6, 0.99)
    middle, width = rng.uniform(3, 15), rng.uniform(1.2, 6)
    first_turns, last_turns, words = rng.uniform(2, 6), rng.uniform(2, 6), rng.uniform(7, 80)
    dip, depth = rng.randrange(8, 60), rng.choice([0, 0, 0.25])
    entropy, floor, clip, warmup = (
        rng.uniform(0.25, 1.0),
        rng.uniform(0.02, 0.2),
        rng.uniform(0, 0.12),
        rng.choice([1, 8]),
    )
    rows = []
    for step in range(1, steps + 1):
        learned = 1 / (1 + math.exp(-(step - middle) / width))
        chance = (start + (end - start) * learned) * (1 - depth * (dip <= step < dip + 3))
        share = _success(rng, chance, episodes=episodes, group=group)
        turns = first_turns + (last_turns - first_turns) * learned + rng.gauss(0, 1 / math.sqrt(episodes))
        warm = min(step / warmup, 1)
        norm = rng.uniform(0.3, 0.7) * rng.lognormvariate(0, 0.3)
        rows.append(
            {
                "step": step,
                "rollout/episodes": episodes,
                "rollout/tasks": episodes // group,
                "rollout/success": share,
                "rollout/reward": {"one": share, "sign": 2 * share - 1, "shaped": share - 0.05 * turns}[unit],
                "rollout/turns": max(turns, 1),
                "rollout/tokens": max(turns, 1) * words * (1 + 0.3 * learned) * rng.lognormvariate(0, 0.05),
                "rollout/valid": _success(rng, 0.6 + 0.38 * learned, episodes=4 * episodes, group=1),
                "rollout/cut": _success(rng, 0.15 - 0.12 * learned, episodes=episodes, group=1),
                "rollout/faults": 0.1 * rng.random(),
                "rollout/zero_variance": min(max(2 * abs(share - 0.5) + rng.gauss(0, 0.08), 0), 1),
                "rollout/repetition": 0.04 * rng.lognormvariate(0, 0.3),
                "loss/policy": rng.gauss(0, 0.03),
                "loss/value": (share * (1 - share) + 0.02) * rng.lognormvariate(0, 0.3),
                "loss/entropy": (floor + (entropy - floor) * math.exp(-step / (2 * width + 3)))
                * rng.lognormvariate(0, 0.07),
                "loss/ratio_max": 1 + warm * 0.3 * rng.paretovariate(1.5),
                "loss/ratio_ess": 1 - 0.02 * rng.random() * warm,
                "loss/clip_fraction": clip * warm * rng.lognormvariate(0, 0.3),
                "train/gradient_norm": norm * (30 if rng.random() < 0.01 else 1),
                "train/clip_bias": 0.0 if rng.random() < 0.3 else 0.3 * warm * rng.lognormvariate(0, 0.5),
            }
        )
    return rows


def _success(rng: random.Random, chance: float, *, episodes: int, group: int) -> float:
    """Share of successes; tries at one task share its difficulty, which makes groups noisier than single tries."""
    wins = 0
    for _ in range(episodes // group):
        task = rng.betavariate(3 * chance, 3 * (1 - chance)) if group > 1 else chance
        wins += sum(rng.random() < task for _ in range(group))
    return wins / episodes


def broken_run(seed: int, failure: Break, *, at: int = 20, steps: int = 26) -> Iterator[Row]:
    """A healthy run that fails from step `at` on."""
    for row in healthy_run(seed, steps=steps):
        late = int(row["step"]) - at
        yield row if late < 0 else failure(row, late)


def rate_times_100(row: Row, late: int) -> Row:
    """A learning rate a hundred times too large: the updates run off first, the episodes follow a step later."""
    after = {"rollout/success": 0.0, "rollout/reward": 0.0, "rollout/valid": 0.05} if late else {}
    return row | after | {
        "loss/ratio_max": 4e3, "loss/ratio_ess": 0.4, "loss/clip_fraction": 0.6, "loss/entropy": 1.3
    }  # fmt: skip


def reward_sign_flipped(row: Row, late: int) -> Row:
    """The reward turned round, the episodes as before."""
    return row | {"rollout/reward": -row["rollout/reward"]}


def setting(**metrics: float) -> Break:
    """A failure that holds metrics at a value; `loss__value` is loss/value."""
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return lambda row, late: row | named


def growing(name: str, *, factor: float) -> Break:
    """A failure that multiplies a metric again in every step."""
    return lambda row, late: row | {name: row[name] * factor ** (late + 1)}


def shrinking_to(name: str, share: float) -> Break:
    """A failure that leaves a share of what the metric was."""
    return lambda row, late: row | {name: row[name] * share}


def _measured(first: Row, *later: Row) -> Rows:
    """Rows of a real run of 128 episodes in groups of eight; what a later row does not say is as in the row before."""
    rows: Rows = [{"step": 1, "rollout/episodes": 128, "rollout/tasks": 16, **first}]
    for row in later:
        rows.append({**rows[-1], "step": rows[-1]["step"] + 1, **row})
    return rows


_START = {
    "rollout/success": 0.406, "rollout/reward": 0.398, "rollout/valid": 0.976, "rollout/cut": 0.0,
    "rollout/turns": 3.25, "rollout/tokens": 19.5, "rollout/zero_variance": 0.0, "rollout/repetition": 0.0,
}  # fmt: skip
_DEAD = {
    "rollout/success": 0.0, "rollout/reward": 0.0, "rollout/valid": 0.0, "rollout/cut": 1.0, "rollout/turns": 1.0,
    "rollout/tokens": 16.0, "rollout/zero_variance": 1.0, "rollout/repetition": 0.923, "loss/entropy": 0.0,
    "loss/ratio_max": 1.0, "loss/ratio_ess": 1.0, "loss/clip_fraction": 0.0, "loss/sampler_kl": 0.0,
    "loss/reference_kl": 1.77, "train/gradient_norm": 0.0,
}  # fmt: skip
AT_ONCE: dict[str, Rows] = {
    "rate of 10": _measured(
        {
            **_START, "loss/entropy": 0.102, "loss/ratio_max": 20.8, "loss/clip_fraction": 0.533,
            "loss/sampler_kl": 13.9, "loss/reference_kl": 3.54e8, "train/gradient_norm": 0.134,
        },
        _DEAD, {}, {},
    ),
    "rate of 0.02": _measured(
        {
            **_START, "loss/entropy": 1.24, "loss/ratio_max": 20.7, "loss/clip_fraction": 0.517,
            "loss/sampler_kl": 9.52, "loss/reference_kl": 6.9e7, "train/gradient_norm": 6.62e5,
        },
        {
            **_DEAD, "rollout/repetition": 0.511, "loss/entropy": 0.688, "loss/ratio_max": 70.4,
            "loss/sampler_kl": 5.05, "loss/reference_kl": 6.2e7, "train/gradient_norm": 9.76e4,
        },
        {"rollout/repetition": 0.314, "loss/sampler_kl": 1.55, "loss/reference_kl": 1980.0},
    ),
    # With one update a step the learner sees nothing of what it did until the next episodes.
    "one update": _measured(
        {
            **_START, "loss/entropy": 0.38, "loss/ratio_max": 1.0, "loss/ratio_ess": 1.0, "loss/clip_fraction": 0.0,
            "loss/sampler_kl": 0.0, "loss/reference_kl": 0.0, "train/gradient_norm": 0.6,
        },
        _DEAD, {}, {},
    ),
}  # fmt: skip
"""Runs that are dead after their first step, as measured with rates far too large."""
