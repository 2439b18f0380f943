"""Wrappers that a recipe names: the same environment for training, evaluation, the doctor and worker processes."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.train.small_runs import ENVS, played, rows, run, small_recipe, trajectories
from turnwise.cli import app
from turnwise.envs.base import Step
from turnwise.envs.check import check_env
from turnwise.envs.process import EnvSource
from turnwise.envs.wrappers import History, TurnLimit, Wrapper
from turnwise.evaluate.evaluation import play_specs
from turnwise.outside import unread
from turnwise.rollout import EpisodeSpec, FunctionAgent, Scheduler
from turnwise.trust import outside_names
from turnwise.waiting import finish

HERE = "tests.envs.wrappers.test_named"
LIMIT = {"kind": "turn-limit", "max_turns": 2}


class Loud(Wrapper):
    """Shouts."""

    def on_step(self, action: str, step: Step) -> Step:
        observation, reward, terminated, truncated, info = step
        return observation.upper(), reward, terminated, truncated, info


class Needy(Wrapper):
    """Has an option that must be given."""

    def __init__(self, env: Any, *, size: int) -> None:
        super().__init__(env)
        self.size = size


def env(*wrappers: Any, **changes: Any) -> dict[str, Any]:
    return {"env": {"id": f"{ENVS}:Say", "kwargs": {"turns": 3}, "wrappers": list(wrappers), "check": False, **changes}}


def observations(spec: EpisodeSpec) -> list[str]:
    async def play() -> Any:
        async with Scheduler() as scheduler:
            return await scheduler.run([spec], FunctionAgent(lambda _: "a"))

    [trajectory] = finish(play())
    return [*(turn.observation for turn in trajectory.turns), trajectory.final_observation]


def test_a_name_is_short_for_a_mapping_and_the_recipe_keeps_it_in_full() -> None:
    recipe = small_recipe(env("history", LIMIT))
    assert recipe.env.wrappers == ({"kind": "history"}, LIMIT)
    limit = recipe.env.source().build()
    assert isinstance(limit, TurnLimit)
    assert isinstance(limit.env, History)


def test_training_and_held_out_episodes_are_played_in_the_wrapped_environment(tmp_path: Path) -> None:
    run(tmp_path / "run", {**env(LIMIT), "train": {"steps": 1}, "eval": {"episodes": 4}})
    assert {len(each.turns) for each in trajectories(played(tmp_path / "run", 1))} <= {1, 2}
    assert rows(tmp_path / "run", "evals")[-1]["eval/turns"] <= 2
    held_out = play_specs(small_recipe({**env(LIMIT), "eval": {"episodes": 4}}))
    assert [spec.wrappers for spec in held_out] == [(LIMIT,)] * 4


@pytest.mark.parametrize("kind", ["Walk", "ThreadWalk", "ProcessWalk"])
def test_wrappers_work_wherever_the_environment_runs(kind: str) -> None:
    place = f"tests.rollout.faulty:{kind}"
    plain = observations(EpisodeSpec(env=place, seed=1))
    loud = observations(EpisodeSpec(env=place, seed=1, wrappers=({"kind": f"{HERE}:Loud"},)))
    assert loud == [plain[0], *map(str.upper, plain[1:])]
    assert loud != plain


def test_episodes_with_other_wrappers_have_other_names() -> None:
    names = {EpisodeSpec(env="a", wrappers=wrappers).id for wrappers in ((), (LIMIT,), ({"kind": "history"},))}
    assert len(names) == 3


def test_demonstrations_are_those_of_the_wrapped_environment(tmp_path: Path) -> None:
    choices = {**env({"kind": "history", "mode": "chat"}), "rollout": {"context": 256}, "train": {"steps": 1}}
    run(tmp_path / "run", {**choices, "model": "nano", "sft": {"demonstrations": 2, "epochs": 1, "batch": 2}})
    [first, *_] = trajectories(played(tmp_path / "run" / "sft", 1))
    assert first.turns[1].observation.startswith("[user]")


def test_the_doctor_examines_the_wrapped_environment() -> None:
    report = check_env("game/guess-number-easy", wrappers=[{"kind": f"{HERE}:Loud"}, LIMIT], seeds=2)
    assert report.ok, report


def test_the_command_line_names_wrappers_too() -> None:
    given = ["play", f"{ENVS}:Say", "turns=2", "--wrap", "history", "--wrap", "{kind: turn-limit, max_turns: 1}"]
    result = CliRunner().invoke(app, given, input="a\n")
    assert "Over (truncated)" in result.output
    refused = CliRunner().invoke(app, ["check-env", f"{ENVS}:Say", "--wrap", "histroy"])
    assert refused.exit_code == 2
    assert "did you mean history?" in refused.output


def test_tools_are_named_too() -> None:
    built = EnvSource(env="math/arithmetic", wrappers=({"kind": "tools", "tools": ["calculator"]},)).build()
    built.reset(seed=1)
    assert "84" in built.step("<calculator>12 * 7</calculator>")[0]  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        ("histroy", "env.wrappers: unknown wrapper 'histroy'; did you mean history?"),
        (
            {"kind": "turn-limit", "max_turns": 3, "turns": 3},
            "wrapper turn-limit: .*'turns'; did you mean max_turns[?] It takes max_turns",
        ),
        ("turn-limit", "wrapper turn-limit: missing a required .*argument: 'max_turns'"),
        (f"{HERE}:Needy", "missing a required .*argument: 'size'"),
        ("os:system", "os:system is not a class with reset and step"),
        ("tests.train.small_envs:Say", "small_envs:Say is not a wrapper; derive it from"),
        ("nowhere:Loud", "nowhere:Loud does not load: No module named 'nowhere'"),
        ({"mode": "chat"}, "a wrapper is a kind, or a mapping with one"),
    ],
)
def test_a_wrapper_that_does_not_fit_is_refused_by_name(wrapper: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_recipe(env(wrapper))


def test_wrappers_of_the_users_own_are_code_that_a_run_leads_to() -> None:
    choices = env("history", {"kind": "own_code:Loud"}, {"kind": "tools", "tools": ["own_tools:mine"]})
    choices["env"] |= {"id": "math/arithmetic", "kwargs": {}}
    assert outside_names(choices) == ["own_code:Loud", "own_tools:mine"]
    with unread():
        small_recipe(choices)  # a dry run imports neither
