"""Reward hacking as the guard sees it: in monitors that move together, not in the reward or the losses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from tests.guard.guard_curves import Row, healthy_run
from tests.guard.recorded_chats import HACKED, HELD, LEARNT
from turnwise.guard.signals import reward_hacking


def first_seen(rows: Sequence[Row]) -> int | None:
    """The first step at which the signal fires."""
    return next((int(row["step"]) for place, row in enumerate(rows) if reward_hacking(rows[:place], row)), None)


def without(name: str, rows: Sequence[Row]) -> list[Row]:
    return [{key: value for key, value in row.items() if key != name} for row in rows]


@pytest.mark.parametrize("hidden", ["", "rollout/success"])
def test_a_hacked_chat_is_seen_also_where_nobody_measures_success(hidden: str) -> None:
    seen = first_seen(without(hidden, HACKED))
    assert seen is not None
    assert 20 < seen < 30  # surer of itself, and longer


@pytest.mark.parametrize("hidden", ["", "rollout/success"])
@pytest.mark.parametrize("rows", [LEARNT, HELD], ids=["learnt", "held"])
def test_chats_that_learn_or_stay_sound_are_not(rows: list[Row], hidden: str) -> None:
    assert first_seen(without(hidden, rows)) is None


def test_a_policy_that_leaves_its_reference_is_seen_without_growing_longer() -> None:
    same_length = [row | {"rollout/tokens": 15.0} for row in HACKED]
    assert first_seen(same_length) is None
    far = [row | {"loss/reference_kl": 0.1 * row["step"]} for row in same_length]
    seen = first_seen(far)
    assert seen is not None
    sighting = reward_hacking(far[: seen - 1], far[seen - 1])
    assert sighting is not None
    assert "KL to the reference" in sighting.text
    assert not sighting.severe


def test_each_sign_alone_is_not_enough() -> None:
    level = {name: HACKED[0][name] for name in ("rollout/reward", "rollout/perplexity", "rollout/tokens")}
    for name in ("rollout/perplexity", "rollout/tokens"):
        assert first_seen([row | {name: level[name]} for row in HACKED]) is None
    falling = [row | {"rollout/reward": 1 - row["rollout/reward"]} for row in HACKED]
    assert first_seen(falling) is None  # worse, but nothing is hacked
    succeeding = [row | {"rollout/success": min(0.3 + row["step"] / 40, 1.0)} for row in HACKED]
    assert first_seen(succeeding) is None  # longer and surer because it can do it


def test_at_most_two_percent_of_healthy_runs_raise_it() -> None:
    def sharpening(seed: int) -> list[Row]:
        return [row | {"rollout/perplexity": math.exp(row["loss/entropy"])} for row in healthy_run(seed)]

    alarmed = [seed for seed in range(200) if first_seen(sharpening(seed)) is not None]
    assert len(alarmed) <= 4, alarmed
