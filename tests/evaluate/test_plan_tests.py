"""Tests of planning: rates by size, kinds of errors, causes, and the command."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.rollout.planner_server import planner
from tests.train.small_runs import run
from turnwise.cli import app
from turnwise.envs.plans.dissection import Cause
from turnwise.envs.plans.plan_oracle import PlanError
from turnwise.evaluate.plan_tests import PlanSuite, error_of, try_planner
from turnwise.rollout.agents import Agent, ConstantAgent, OracleAgent, RandomAgent
from turnwise.rollout.episode import EpisodeSpec
from turnwise.rollout.scheduler import Scheduler
from turnwise.types import StopReason, Trajectory, Turn
from turnwise.waiting import finish


def suite(**options: object) -> PlanSuite:
    return PlanSuite(**{"sizes": (3,), "tests": 12, "options": {"protocol": "plain"}, **options})  # pyright: ignore[reportArgumentType]


def plays(agent: Agent):
    async def together(specs: Sequence[EpisodeSpec]) -> list[Trajectory]:
        async with Scheduler() as scheduler:
            return await scheduler.run(specs, agent)

    return lambda specs: finish(together(specs))


def test_an_oracle_makes_no_errors():
    (result,) = try_planner(plays(OracleAgent()), suite())
    assert (result.tests, result.failures, dict(result.causes)) == (12, 0, {})
    assert 0 < result.chance < 1


def test_a_random_order_fails_by_order_and_another_try_often_helps():
    (result,) = try_planner(plays(RandomAgent()), suite(tests=16))
    assert set(result.errors) == {PlanError.ORDER}
    assert sum(result.causes.values()) == result.failures > 3
    assert result.causes[Cause.PROBABILITY] > 0


def test_an_agent_that_says_the_same_always_fails_for_the_constraints():
    (result,) = try_planner(plays(ConstantAgent(text="done")), suite(tests=4))
    assert result.errors == {PlanError.LOST: 4}
    assert result.causes == {Cause.CONSTRAINT: 4}


def test_without_a_number_there_are_as_many_tests_as_in_the_paper():
    assert [len(PlanSuite().specs(size)) for size in range(2, 10)] == [20, 60, 120, 200, 300, 300, 300, 300]


@pytest.mark.parametrize(
    ("stop", "seconds", "expected"),
    [
        (StopReason.MAX_TURNS, 1.0, PlanError.TIMEOUT),
        (StopReason.TIMEOUT, 1.0, PlanError.TIMEOUT),
        (StopReason.MAX_TOKENS, 1.0, PlanError.ACT),
        (StopReason.DONE, 200.0, PlanError.TIMEOUT),
        (StopReason.DONE, 1.0, None),
    ],
)
def test_limits_are_errors_too(stop: StopReason, seconds: float, expected: PlanError | None):
    played = Trajectory(id="a", turns=[Turn(sample_seconds=seconds)], stop=stop, info={"error": None})
    assert error_of(played, seconds=180) == expected


@pytest.mark.parametrize("protocol", ["api", "react"])
def test_the_command_tests_an_agent_behind_an_address(protocol: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with planner(reverse=True) as server:
        arguments = ["test-agent", server.url, "--model", "m", "--sizes", "3", "--tests", "4", "--tries", "1"]
        plain = CliRunner().invoke(app, [*arguments, f"protocol={protocol}"])
        shown = CliRunner().invoke(app, [*arguments, f"protocol={protocol}", "--json"])
        assert server.asked[0]["temperature"] == 0.0
    assert plain.exit_code == 0, plain.output
    assert "random order" in plain.output
    assert "errors: order 100.0%" in plain.output
    numbers = json.loads(shown.output)
    (row,) = numbers["sizes"]
    assert row["error_rate"] > 0.5
    assert row["errors"]["order"] == sum(row["causes"].values()) == round(row["error_rate"] * 4)


def test_the_command_tests_a_model_of_ours():
    arguments = [
        "test-agent",
        "pico-plans",
        "protocol=plain",
        "prompt=terse",
        "max_turns=3",
        "--sizes",
        "3",
        "--tests",
        "2",
    ]
    result = CliRunner().invoke(app, [*arguments, "--tries", "0", "--max-tokens", "2", "--json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.output)["sizes"]
    assert (row["tests"], row["error_rate"]) == (2, 1.0)


def test_the_command_tests_a_run_in_the_form_that_it_learned(tmp_path: Path):
    learned = {"protocol": "plain", "prompt": "terse", "sizes": [3]}
    changes = {
        "model": "pico-plans",
        "env": {"id": "plans/timed", "kwargs": learned, "check": False},
        "rollout": {"episodes": 4, "max_turns": 3, "max_tokens": 2},
        "train": {"steps": 1},
    }
    run(tmp_path / "run", changes)
    arguments = ["test-agent", str(tmp_path / "run"), "--sizes", "3", "--tests", "1", "--tries", "0", "--json"]
    as_learned = CliRunner().invoke(app, arguments)
    assert as_learned.exit_code == 0, as_learned.output
    assert json.loads(as_learned.output)["options"] == {"timed": True, **learned}
    untimed = CliRunner().invoke(app, [*arguments, "timed=false"])
    assert json.loads(untimed.output)["options"] == {"timed": False, **learned}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["http://127.0.0.1:9/v1"], "add --model NAME"),
        (["pico-plans", "--sizes", "three"], "write numbers with commas"),
        (["pico-plans", "protocol=xml", "--sizes", "3"], "react, calls, api, plain"),
        (["http://127.0.0.1:9/v1", "--model", "m", "--sizes", "3", "--tests", "1"], "gave no answer"),
    ],
)
def test_mistakes_are_named(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("turnwise.chat_endpoint._PAUSE", 0.01)
    result = CliRunner().invoke(app, ["test-agent", *arguments])
    assert (result.exit_code, message in result.output) == (2, True), result.output
