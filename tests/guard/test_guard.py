"""What the guard does about what the signals see."""

from __future__ import annotations

import json
import math

import pytest

from tests.guard.guard_curves import Row, broken_run, healthy_run, rate_times_100
from turnwise.guard.guard import QUIET, SMALLEST, Guard, Verdict
from turnwise.recipe.schema import GuardChoice

ACTING = GuardChoice(mode="act", signals={}, restores=2, shrink=0.2)


def calm(first: int, last: int) -> list[Row]:
    """Steps in which nothing moves, of a run that could."""
    return [
        {"step": step, "loss/clip_fraction": 0.1, "loss/entropy": 0.3, "rollout/episodes": 64, "rollout/success": 0.8}
        for step in range(first, last + 1)
    ]


def judge_all(guard: Guard, rows: list[Row]) -> list[Verdict]:
    return [guard.judge(int(row["step"]), row) for row in rows]


def test_a_non_finite_gradient_is_left_out_at_once_and_told_as_a_skip() -> None:
    guard = Guard(GuardChoice())
    assert guard.allows(step=1, update=0, gradient_norm=0.7, loss=0.1)
    assert not guard.allows(step=1, update=1, gradient_norm=math.nan, loss=0.1)
    assert not guard.allows(step=1, update=2, gradient_norm=0.7, loss=math.inf)
    verdict = guard.judge(1, {"loss/policy": math.nan})
    assert verdict.action == "none"
    assert verdict.learning_rate_factor == 1.0
    (incident,) = verdict.incidents
    assert (incident.signal, incident.mode, incident.action) == ("non-finite", "act", "skip")
    assert guard.healthy_since(1)


def test_non_finite_gradients_three_steps_in_a_row_restore() -> None:
    guard = Guard(GuardChoice())
    actions = []
    for step in (1, 2, 3):
        guard.allows(step=step, update=0, gradient_norm=math.inf, loss=0.1)
        actions.append(guard.judge(step, {}).action)
    assert actions == ["none", "none", "restore"]
    assert not guard.healthy_since(3)


def test_non_finite_values_outside_gradients_restore_with_a_smaller_learning_rate() -> None:
    guard = Guard(GuardChoice(shrink=0.5))
    guard.broken(step=4, text="log-probs of the policy are not finite")
    verdict = guard.judge(4, {})
    assert (verdict.action, verdict.learning_rate_factor) == ("restore", 0.5)
    assert verdict.incidents[0].as_row() == {
        "kind": "guard",
        "step": 4,
        "signal": "non-finite",
        "mode": "act",
        "action": "restore",
        "text": "log-probs of the policy are not finite at step 4",
        "evidence": {},
        "change": "learning rate × 0.5",
    }


@pytest.mark.parametrize("mode", ["warn", "off"])
def test_without_act_nothing_is_done_and_without_warn_nothing_is_said(mode: str) -> None:
    guard = Guard(GuardChoice.model_validate({"mode": mode, "signals": {}}))
    assert guard.allows(step=1, update=0, gradient_norm=math.nan, loss=math.nan)
    verdicts = judge_all(guard, list(broken_run(0, rate_times_100)))
    assert {verdict.action for verdict in verdicts} == {"none"}
    assert {verdict.learning_rate_factor for verdict in verdicts} == {1.0}
    incidents = [incident for verdict in verdicts for incident in verdict.incidents]
    assert {incident.action for incident in incidents} == ({"none"} if mode == "warn" else set())


def test_a_signal_may_have_a_mode_of_its_own() -> None:
    guard = Guard(GuardChoice(mode="off", signals={"clip-surge": "act"}))
    judge_all(guard, calm(1, 10))
    verdict = guard.judge(11, calm(11, 11)[0] | {"loss/clip_fraction": 0.7, "loss/entropy": 5.0})
    assert [(incident.signal, incident.action) for incident in verdict.incidents] == [("clip-surge", "shrink")]


def test_an_unknown_signal_is_refused_with_the_near_name() -> None:
    with pytest.raises(ValueError, match="no signal 'clip-surg'; did you mean clip-surge"):
        Guard(GuardChoice(signals={"clip-surg": "act"}))


def test_a_mild_signal_shrinks_the_learning_rate_and_says_so() -> None:
    guard = Guard(ACTING)
    judge_all(guard, calm(1, 10))
    verdict = guard.judge(11, calm(11, 11)[0] | {"loss/clip_fraction": 0.7})
    assert (verdict.action, verdict.learning_rate_factor) == ("shrink", 0.2)
    assert verdict.incidents[0].change == "learning rate × 0.2"
    assert guard.judge(12, calm(12, 12)[0]).learning_rate_factor == 0.2
    assert guard.healthy_since(1)


def test_mild_signals_never_shrink_the_learning_rate_to_nothing() -> None:
    guard = Guard(ACTING)
    for start in range(1, 100, 20):
        judge_all(guard, calm(start, start + 18))
        guard.judge(start + 19, calm(1, 1)[0] | {"step": start + 19, "loss/clip_fraction": 0.7})
    assert guard.learning_rate_factor == pytest.approx(0.04)
    assert guard.learning_rate_factor >= SMALLEST


def test_one_action_a_step_however_many_signals_fire() -> None:
    guard = Guard(ACTING)
    verdicts = judge_all(guard, list(broken_run(0, rate_times_100, at=20, steps=20)))
    incidents = verdicts[-1].incidents
    assert {"ratio-tail", "entropy-cliff", "clip-surge"} <= {incident.signal for incident in incidents}
    assert [incident.action for incident in incidents].count("restore") == 1
    assert {incident.action for incident in incidents} == {"restore", "none"}
    assert verdicts[-1].learning_rate_factor == 0.2


def test_restores_are_used_up_and_then_the_run_stops() -> None:
    guard, actions, factors = Guard(ACTING), [], []
    judge_all(guard, calm(1, 10))
    for step in (11, 12, 13):
        verdict = guard.judge(step, calm(step, step)[0] | {"loss/entropy": 2.0})
        actions.append(verdict.action)
        factors.append(verdict.learning_rate_factor)
        guard.restored(10)
    assert actions == ["restore", "restore", "stop"]
    assert factors == pytest.approx([0.2, 0.04, 0.04])
    assert guard.state == "stopped"


def test_most_episodes_failing_stops_without_spending_restores() -> None:
    guard = Guard(ACTING)
    assert guard.judge(1, {"rollout/faults": 0.9}).action == "none"
    verdict = guard.judge(2, {"rollout/faults": 0.7})
    assert (verdict.action, verdict.learning_rate_factor) == ("stop", 1.0)
    assert verdict.incidents[0].text == "70% of the episodes failed at step 2, 90% the step before"


def test_groups_without_a_difference_are_told_and_left_to_the_user() -> None:
    guard = Guard(ACTING)
    verdicts = judge_all(guard, [{"step": step, "rollout/zero_variance": 1.0} for step in range(1, 9)])
    assert [len(verdict.incidents) for verdict in verdicts] == [0, 0, 1, 0, 0, 0, 0, 0]
    assert {verdict.action for verdict in verdicts} == {"none"}


def test_after_a_restore_the_history_behind_it_counts_and_what_came_after_is_forgotten() -> None:
    guard = Guard(ACTING)
    judge_all(guard, calm(1, 10))
    guard.judge(11, calm(11, 11)[0] | {"loss/entropy": 2.0})
    assert not guard.healthy_since(10)
    guard.restored(10)
    assert guard.healthy_since(10)
    assert guard.state == "restored 1 of 2"
    assert guard.judge(11, calm(11, 11)[0]).incidents == ()
    assert guard.judge(12, calm(12, 12)[0] | {"loss/entropy": 2.0}).action == "restore"


def test_a_bad_stretch_is_one_incident_until_the_signal_has_been_quiet() -> None:
    guard = Guard(GuardChoice(mode="warn", signals={}))
    judge_all(guard, calm(1, 20))
    bad = [row | {"loss/clip_fraction": 0.7} for row in calm(21, 22)]
    assert [len(verdict.incidents) for verdict in judge_all(guard, bad)] == [1, 0]
    assert guard.state == "saw clip-surge"
    judge_all(guard, calm(23, 22 + QUIET))
    assert [len(verdict.incidents) for verdict in judge_all(guard, calm(23 + QUIET, 30))] == [0] * (8 - QUIET)
    assert guard.state == "healthy"
    judge_all(guard, calm(31, 45))
    assert len(guard.judge(46, calm(46, 46)[0] | {"loss/clip_fraction": 0.7}).incidents) == 1


def test_healthy_since_is_about_severe_signals_from_that_step_on() -> None:
    guard = Guard(GuardChoice(mode="warn", signals={}))
    judge_all(guard, calm(1, 10))
    guard.judge(11, calm(11, 11)[0] | {"loss/entropy": 2.0})
    judge_all(guard, calm(12, 14))
    assert [guard.healthy_since(step) for step in (8, 11, 12)] == [False, False, True]


@pytest.mark.parametrize("cut", [5, 19, 21])
def test_a_guard_resumed_from_its_json_gives_the_same_verdicts(cut: int) -> None:
    rows = list(broken_run(4, rate_times_100, at=20, steps=28))
    whole, before = Guard(ACTING), Guard(ACTING)
    expected = judge_all(whole, rows)
    judge_all(before, rows[:cut])
    before.allows(step=cut + 1, update=3, gradient_norm=math.nan, loss=0.0)
    resumed = Guard(ACTING)
    resumed.load_state_dict(json.loads(json.dumps(before.state_dict(), allow_nan=False)))
    assert resumed.state_dict() == before.state_dict()
    assert resumed.state == before.state
    rest = judge_all(before, rows[cut:])
    assert judge_all(resumed, rows[cut:]) == rest
    assert [verdict.action for verdict in rest] == [verdict.action for verdict in expected[cut:]]


def test_rows_with_numbers_that_are_not_finite_keep_the_state_plain_json() -> None:
    guard = Guard(ACTING)
    guard.judge(1, {"loss/value": math.nan, "loss/ratio_max": math.inf, "loss/entropy": 0.3})
    assert json.loads(json.dumps(guard.state_dict(), allow_nan=False))["rows"] == [{"loss/entropy": 0.3, "step": 1}]


def test_the_memory_of_a_long_run_is_bounded() -> None:
    guard = Guard(ACTING)
    judge_all(guard, healthy_run(1, steps=100))
    assert [row["step"] for row in guard.state_dict()["rows"]] == list(range(37, 101))
