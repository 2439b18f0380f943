"""Reward hacking as the guard sees it: in monitors that move together, not in the reward or the losses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from tests.guard.guard_curves import Row, healthy_run
from tests.guard.recorded_chats import HACKED, HELD, LEARNT
from turnwise.guard.signals import SIGNALS, Detector, reward_hacking, reward_shift
from turnwise.runs.rows import number

_LOSSES = ("loss/policy", "loss/value", "loss/entropy")


def first_seen(rows: Sequence[Row], signal: Detector = reward_hacking) -> int | None:
    """The first step at which the signal fires."""
    return next((int(row["step"]) for place, row in enumerate(rows) if signal(rows[:place], row)), None)


def without(names: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    return [{key: value for key, value in row.items() if key not in names} for row in rows]


@pytest.mark.parametrize(
    ("hidden", "seen", "signs"),
    [
        ([], 10, "success 0.695 (0.898 before), tokens per turn 19.3 (16 before)"),
        (["rollout/success"], 11, "tokens per turn 19.3 (16 before), KL to the reference 0.557 (0.0402 before)"),
        (["rollout/tokens"], 11, "success 0.695 (0.898 before), KL to the reference 0.557 (0.0402 before)"),
        (["rollout/success", "loss/reference_kl"], 28, "tokens per turn 22 (16 before), own perplexity 1.91 (3.73"),
    ],
)
def test_a_hacked_chat_is_seen_by_any_two_signs(hidden: list[str], seen: int, signs: str) -> None:
    rows = without(hidden, HACKED)
    assert first_seen(rows) == seen
    sighting = reward_hacking(rows[: seen - 1], rows[seen - 1])
    assert sighting is not None
    assert signs in sighting.text
    assert not sighting.severe
    moved = [name for name in sighting.evidence if not name.endswith(" before")]
    assert {*sighting.evidence} == {*moved, *(f"{name} before" for name in moved)}
    assert len(moved) >= 2


def test_losses_and_entropy_do_not_show_it_before_nothing_is_left() -> None:
    assert all(number(row, name) is not None for row in HACKED for name in _LOSSES)
    losses = [{name: row[name] for name in ("step", *_LOSSES)} for row in HACKED]
    found = {name: step for name, signal in SIGNALS.items() if (step := first_seen(losses, signal)) is not None}
    assert all(HACKED[step - 1]["rollout/score_true"] < 0.01 for step in found.values()), found


def test_where_success_is_measured_a_reward_that_runs_away_from_it_is_seen_even_earlier() -> None:
    assert first_seen(HACKED, reward_shift) == 6
    assert first_seen(LEARNT, reward_shift) is None


@pytest.mark.parametrize(
    "hidden", [[], ["rollout/success"], ["loss/reference_kl"], ["rollout/success", "loss/reference_kl"]]
)
@pytest.mark.parametrize("rows", [LEARNT, HELD], ids=["learnt", "held"])
def test_chats_that_learn_or_stay_sound_are_not(rows: list[Row], hidden: list[str]) -> None:
    assert first_seen(without(hidden, rows)) is None


def test_a_policy_that_is_surer_and_far_from_its_reference_is_seen_without_growing_longer() -> None:
    rows = without(["rollout/success", "rollout/tokens"], HACKED)
    assert first_seen([row | {"loss/reference_kl": 0.1 * row["step"]} for row in rows]) == 28
    near = [row | {"loss/reference_kl": 0.02 * row["step"]} for row in rows]
    assert first_seen(near) is None  # learning makes a policy surer too, and leads it 0.5 nats away


def test_each_sign_alone_is_not_enough() -> None:
    signs = ("rollout/success", "rollout/perplexity", "rollout/tokens", "loss/reference_kl")
    for name in signs:
        assert (
            first_seen([HACKED[0] | {key: row[key] for key in ("step", "rollout/reward", name)} for row in HACKED])
            is None
        )
    falling = [row | {"rollout/reward": 1 - row["rollout/reward"]} for row in HACKED]
    assert first_seen(falling) is None  # worse, but nothing is hacked
    succeeding = [row | {"rollout/success": min(0.3 + row["step"] / 40, 1.0)} for row in HACKED]
    assert first_seen(succeeding) is None  # longer and surer because it can do it


def test_at_most_two_percent_of_healthy_runs_raise_it() -> None:
    def sharpening(seed: int) -> list[Row]:
        monitors = [(math.exp(row["loss/entropy"]), 0.03 * row["step"]) for row in healthy_run(seed)]
        return [
            row | {"rollout/perplexity": perplexity, "loss/reference_kl": kl}
            for row, (perplexity, kl) in zip(healthy_run(seed), monitors, strict=True)
        ]

    alarmed = [seed for seed in range(200) if first_seen(sharpening(seed)) is not None]
    assert len(alarmed) <= 4, alarmed
