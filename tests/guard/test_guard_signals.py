"""What the signals see: failures within three steps, and learning never taken for one."""

from __future__ import annotations

import math

import pytest

from tests.guard.guard_curves import (
    AT_ONCE,
    Break,
    Row,
    broken_run,
    growing,
    healthy_run,
    rate_times_100,
    reward_sign_flipped,
    setting,
    shrinking_to,
)
from turnwise.guard.guard import Guard
from turnwise.guard.robust import rate_error, read, step_noise
from turnwise.guard.signals import FIRST_REFUSED, REFUSED, SIGNALS, non_finite
from turnwise.recipe.schema import GuardChoice

WATCHING = GuardChoice(mode="warn", signals={})
AT = 20


def first_seen(rows: list[Row], signal: str | None = None) -> int | None:
    """The first step at which the signal (or any) raises an incident."""
    guard = Guard(WATCHING)
    for row in rows:
        incidents = guard.judge(int(row["step"]), row).incidents
        if any(signal in (None, incident.signal) for incident in incidents):
            return int(row["step"])
    return None


def solved_run(seed: int, *, reward_at_success: float = 1.0, reward_at_failure: float = 0.0) -> list[Row]:
    """A healthy run, only with the reward given."""
    rows = healthy_run(seed)
    span = reward_at_success - reward_at_failure
    return [row | {"rollout/reward": reward_at_failure + span * row["rollout/success"]} for row in rows]


def test_at_most_two_percent_of_healthy_runs_raise_an_incident() -> None:
    alarmed = [seed for seed in range(200) if first_seen(healthy_run(seed)) is not None]
    assert len(alarmed) <= 4, alarmed


@pytest.mark.parametrize(
    ("signal", "failure"),
    [
        ("ratio-tail", setting(loss__ratio_max=400)),
        ("ratio-tail", setting(loss__ratio_ess=0.4)),
        ("entropy-cliff", setting(loss__entropy=1.9)),
        ("clip-surge", setting(loss__clip_fraction=0.6)),
        ("clip-bias-surge", setting(train__clip_bias=9)),
        ("value-explosion", growing("loss/value", factor=40)),
        ("zero-variance", setting(rollout__zero_variance=1, rollout__success=0)),
        ("turn-collapse", setting(rollout__turns=1)),
        ("length-collapse", shrinking_to("rollout/tokens", 0.25)),
        ("length-collapse", shrinking_to("rollout/tokens", 5)),
        ("repetition", setting(rollout__repetition=0.6)),
        ("cut-surge", setting(rollout__cut=0.3)),
        ("validity", setting(rollout__valid=0.1)),
        ("reward-shift", setting(rollout__success=0.02)),
        ("gradient-spike", growing("train/gradient_norm", factor=12)),
        ("faults", setting(rollout__faults=0.8)),
    ],
)
def test_a_signal_sees_its_failure_within_three_steps(signal: str, failure: Break) -> None:
    seen = [first_seen(list(broken_run(seed, failure, at=AT)), signal) for seed in range(20)]
    assert sum(step is not None and AT <= step < AT + 3 for step in seen) >= 18, seen


@pytest.mark.parametrize(("success", "seen"), [(0.8, AT), (0.95, None)])
def test_entropy_that_falls_off_at_once_is_seen_unless_success_rises_with_it(success: float, seen: int | None) -> None:
    rows: list[Row] = [{"step": step, "loss/entropy": 0.4, "rollout/success": 0.8} for step in range(1, AT)]
    rows.append({"step": AT, "loss/entropy": 0.02, "rollout/success": success})
    assert first_seen(rows, "entropy-cliff") == seen


def test_entropy_that_creeps_up_to_the_noise_of_a_dying_run_is_seen() -> None:
    rows = [row | {"loss/entropy": 0.2 + max(row["step"] - AT, 0) * 0.07} for row in healthy_run(3)]
    step = first_seen(rows, "entropy-cliff")
    assert step is not None
    assert AT + 5 <= step <= AT + 8


def test_a_learning_rate_a_hundred_times_too_large_is_seen_in_its_first_step() -> None:
    assert [first_seen(list(broken_run(seed, rate_times_100, at=AT)), "ratio-tail") for seed in range(30)] == [AT] * 30


def test_a_hundredfold_rate_is_seen_by_its_success_alone() -> None:
    for seed in range(30):
        failing = setting(rollout__success=0.0, rollout__reward=0.0)
        step = first_seen(list(broken_run(seed, failing, at=AT)), "reward-shift")
        assert step is not None, seed
        assert AT <= step < AT + 3, seed


@pytest.mark.parametrize("at_failure", [0.0, -1.0])
def test_a_reward_whose_sign_flips_is_seen_within_three_steps(at_failure: float) -> None:
    for seed in range(40):
        rows = solved_run(seed, reward_at_failure=at_failure)
        if sum(row["rollout/reward"] for row in rows[10:AT]) / 10 < 0.75:
            continue
        rows = [row if row["step"] < AT else reward_sign_flipped(row, 0) for row in rows]
        step = first_seen(rows, "reward-shift")
        assert step is not None, seed
        assert AT <= step < AT + 3, seed


def test_a_run_that_dies_in_its_first_steps_is_seen() -> None:
    successes = [0.45, 0.3, 0.02, 0.0, 0.0]
    rows: list[Row] = [
        {"step": step, "rollout/episodes": 64, "rollout/success": success} for step, success in enumerate(successes, 1)
    ]
    assert first_seen(rows, "reward-shift") == 5


@pytest.mark.parametrize(("cancel", "seen"), [(None, AT), (0.9, AT), (1.0, None)])
def test_a_policy_that_wins_only_what_it_loses_itself_is_not_judged_by_it(
    cancel: float | None, seen: int | None
) -> None:
    decided: Row = {"rollout/success": 0.5, "rollout/reward": 0.0}
    rows: list[Row] = [{"step": step, **decided} for step in range(1, AT)]
    if cancel is not None:
        rows = [row | {"rollout/zero_sum": cancel} for row in rows]
    rows += [{"step": step, "rollout/success": 0.0, "rollout/reward": -0.01} for step in range(AT, AT + 9)]  # draws
    assert first_seen(rows, "reward-shift") == seen


@pytest.mark.parametrize("name", AT_ONCE)
def test_a_run_that_dies_in_its_first_step_is_seen_by_the_second(name: str) -> None:
    step = first_seen(AT_ONCE[name])
    assert step is not None
    assert step <= 2


@pytest.mark.parametrize(
    "missing", [("loss/",), ("loss/", "rollout/success"), ("loss/", "rollout/success", "rollout/valid")]
)
def test_one_metric_that_is_lost_at_once_is_enough(missing: tuple[str, ...]) -> None:
    rows = [
        {name: value for name, value in row.items() if not name.startswith(missing)} for row in AT_ONCE["one update"]
    ]
    assert first_seen(rows) == 2


def test_a_guard_that_acts_restores_a_run_that_died_at_once() -> None:
    guard = Guard(GuardChoice(mode="act", signals={}))
    verdict = guard.judge(1, AT_ONCE["rate of 0.02"][0])
    assert verdict.action == "restore"
    assert verdict.learning_rate_factor == pytest.approx(0.2)
    assert not guard.healthy_since(1)


def test_a_recipe_sets_bounds_of_its_own_and_switches_them_off() -> None:
    row = AT_ONCE["rate of 10"][0]
    for bounds in (
        {"loss/sampler_kl": 20.0, "loss/reference_kl": None},
        {"loss/sampler_kl": None, "loss/reference_kl": 1e9},
    ):
        assert not Guard(GuardChoice(mode="warn", signals={}, bounds=bounds)).judge(1, row).incidents
    assert not Guard(GuardChoice(mode="warn", signals={"kl": "off"})).judge(1, row).incidents
    with pytest.raises(ValueError, match="no bound on 'loss/sampler'; did you mean loss/sampler_kl"):
        Guard(GuardChoice(bounds={"loss/sampler": 1.0}))


def test_a_task_learned_within_ten_steps_is_no_incident() -> None:
    rows: list[Row] = []
    for step in range(1, 31):
        share = min(0.3 + 0.065 * step, 0.95)
        rows.append(
            {
                "step": step,
                "rollout/episodes": 64,
                "rollout/success": share,
                "rollout/reward": 2 * share - 1,
                "rollout/turns": max(6 - 0.4 * step, 2.5),
                "rollout/tokens": max(120 - 8 * step, 40),
                "rollout/zero_variance": share,
                "loss/entropy": 0.9 * 0.88**step,
            }
        )
    assert first_seen(rows) is None


def test_an_easy_task_learned_in_two_steps_is_no_incident() -> None:
    # Recorded: a program of one call, behind the gateway. Its entropy falls as far as in a run that dies.
    recorded = [(0.829, 0.5, 0.25, 6.19), (0.0896, 0.9375, 0.4688, 7.75)]
    later = [(0.07 * 0.9**step, 0.97, 0.49, 6.5) for step in range(8)]
    names = ("loss/entropy", "rollout/success", "rollout/reward", "rollout/tokens")
    known = {"rollout/episodes": 16, "rollout/tasks": 2, "rollout/turns": 1, "rollout/valid": 0.94}
    rows = [
        {"step": step, **known, **dict(zip(names, values, strict=True))}
        for step, values in enumerate([*recorded, *later], 1)
    ]
    assert first_seen(rows) is None


def test_groups_that_all_succeed_are_no_incident() -> None:
    rows: list[Row] = [{"step": step, "rollout/zero_variance": 1.0, "rollout/success": 1.0} for step in range(1, 9)]
    assert first_seen(rows) is None


def test_one_gradient_spike_is_no_incident_and_two_are() -> None:
    calm: list[Row] = [{"step": step, "train/gradient_norm": 0.4 + 0.01 * (step % 3)} for step in range(1, 16)]
    once = [row | {"train/gradient_norm": 40.0} if row["step"] == 12 else row for row in calm]
    twice = [row | {"train/gradient_norm": 40.0} if row["step"] in (12, 14) else row for row in calm]
    assert first_seen(once) is None
    assert first_seen(twice) == 14


def test_a_clipping_bias_that_was_idle_has_no_scale_to_surge_from() -> None:
    rows: list[Row] = [{"step": step, "train/clip_bias": 0.0 if step < 15 else 0.2} for step in range(1, 18)]
    assert first_seen(rows) is None


def test_a_metric_that_is_not_finite_is_severe_unless_its_updates_were_left_out() -> None:
    finding = non_finite([], {"step": 4, "loss/policy": math.nan})
    assert finding is not None
    assert finding.severe
    assert finding.text == "loss/policy not finite at step 4"
    left_out = non_finite([], {"step": 4, "loss/policy": math.nan, REFUSED: 2, FIRST_REFUSED: 1})
    assert left_out is not None
    assert not left_out.severe
    assert left_out.text == "non-finite gradients in 2 updates at step 4, first in update 1"


def test_signals_say_nothing_about_missing_metrics_and_short_histories() -> None:
    for name, see in SIGNALS.items():
        assert see([], {"step": 1}) is None, name
        assert see([{"step": step} for step in range(20)], {"step": 20, "loss/entropy": math.nan}) is None or (
            name == "non-finite"
        )


def test_the_sentence_holds_step_value_and_what_was_before() -> None:
    rows: list[Row] = [{"step": step, "loss/clip_fraction": 0.12} for step in range(1, 22)]
    finding = SIGNALS["clip-surge"](rows, {"step": 22, "loss/clip_fraction": 0.61})
    assert finding is not None
    assert finding.text == "clip fraction 0.61 at step 22, 0.12 before"
    assert finding.evidence == {"loss/clip_fraction": 0.61, "before": 0.12}


def test_every_signal_says_in_one_line_what_it_sees() -> None:
    assert [name for name, see in SIGNALS.items() if "\n" in (see.__doc__ or "\n")] == []


def test_noise_is_reckoned_around_the_trend_and_not_from_a_single_jump() -> None:
    assert step_noise([float(value) for value in range(10)]) == 0
    assert step_noise([0.0, 0, 0, 0, 100, 100, 100, 100]) == 0
    # Steps of ±1: every deviation is 1, over 1.15 √2, widened by 1 + 4 / 8.
    assert step_noise([0.0, 1, 0, 1, 0, 1, 0, 1, 0]) == pytest.approx(1.5 / (1.15 * math.sqrt(2)), rel=1.01)


def test_two_bad_rows_leave_the_level_before_where_it_was() -> None:
    rows: list[Row] = [{"step": step, "x": 1.0 if step < 7 else 50.0} for step in range(1, 9)]
    reading = read(rows, {"step": 9, "x": 50.0}, "x")
    assert reading is not None
    assert reading.before == 1.0


def test_the_error_of_a_rate_is_never_zero() -> None:
    assert rate_error(0.5, 98) == pytest.approx(0.5 / math.sqrt(98))
    assert rate_error(0.0, 64) == pytest.approx(math.sqrt((1 / 66) * (65 / 66) / 64))
