"""`terminal/tasks`: the protocol, its limits and its rewards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.envs.terminals.sample_tasks import counting_task, needs_worlds, write_samples
from turnwise.envs import make
from turnwise.envs.terminals.terminal_env import Terminal
from turnwise.envs.terminals.terminal_protocol import DONE, INVALID, parse, show
from turnwise.envs.terminals.terminal_shell import Output

pytestmark = needs_worlds
SOLVE = "<command>wc -l < in.txt > out.txt</command>"


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    return write_samples(tmp_path)


@pytest.fixture
def env(tasks: str) -> Iterator[Terminal]:
    env = make("terminal/tasks", tasks=tasks, turns=4)
    assert isinstance(env, Terminal)
    env.reset(seed=0)
    yield env
    env.close()


@pytest.mark.parametrize(
    ("action", "understood"),
    [
        ("<command>ls</command>", "ls"),
        ("<think>or <command>rm x</command>?</think><command>ls</command>", "ls"),
        ("<command>first</command> then <command>last</command>", "last"),
        (f"<command>ls</command>{DONE}", DONE),
        (f"{DONE}<command>ls</command>", DONE),
        ("<action> DONE </action>", DONE),
        (f"<think>{DONE} is too early</think><command>ls</command>", "ls"),
        ("<command>cat <<E\n<b>x</b>\nE\n</command>", "cat <<E\n<b>x</b>\nE"),
        ("<command></command>", None),
        ("<command>ls", None),
        ("ls</command>", None),
        ("ls", None),
        ("", None),
        ("<command>" * 100_000, None),
    ],
)
def test_done_wins_and_otherwise_the_last_command_counts(action: str, understood: str | None):
    assert parse(action) == understood


def test_feedback_has_a_word_the_output_and_the_exit_code():
    assert show(Output(text="a\n", code=0), 10) == "The command succeeded (exit code 0).\na"
    assert show(Output(text="", code=2), 10) == "The command failed (exit code 2). It printed nothing."
    assert "did not end within 10 seconds" in show(Output(text="", code=None), 10)
    assert show(Output(text="<command>x</command>", code=0), 10).endswith("&lt;command>x&lt;/command>")


def test_a_solved_task_is_worth_one(env: Terminal):
    assert env.step(SOLVE)[1:3] == (0.0, False)
    said, reward, terminated, truncated, info = env.step(f"<think>ok</think>{DONE}")
    assert (reward, terminated, truncated, info["success"], info["ending"]) == (1.0, True, False, True, "done")
    assert info["scores"] == {"success_2": 1.0}
    assert said.endswith("The task is solved.")


def test_doing_nothing_is_worth_nothing(env: Terminal):
    assert env.step(DONE)[1:3] == (0.0, True)


def test_a_turn_without_a_command_costs_a_turn_and_the_last_turn_is_tested(env: Terminal):
    observation, _, _, _, info = env.step("I would rather think.")
    assert (observation, info["valid"]) == (INVALID, False)
    env.step(SOLVE)
    env.step("<command>true</command>")
    _, reward, terminated, _, info = env.step("nothing")
    assert (reward, terminated, info["ending"]) == (1.0, True, "turns")


def test_an_ended_shell_ends_the_episode_and_the_test_decides(env: Terminal):
    env.step(SOLVE)
    _, reward, terminated, _, info = env.step("<command>exit</command>")
    assert (reward, terminated, info["ending"]) == (1.0, True, "shell")


def test_no_time_left_means_no_test_and_no_reward(tasks: str):
    env = make("terminal/tasks", tasks=tasks, seconds=2.0)
    assert isinstance(env, Terminal)
    env.reset(seed=0)
    assert env.step(SOLVE)[2] is False
    _, reward, terminated, _, info = env.step("<command>sleep 600</command>")
    assert (reward, terminated, info["ending"], info["success"]) == (0.0, True, "time", False)


def test_a_slow_command_is_interrupted_and_the_episode_goes_on(tasks: str):
    env = make("terminal/tasks", tasks=tasks, command_seconds=1.0)
    assert isinstance(env, Terminal)
    env.reset(seed=0)
    observation, _, terminated, _, _ = env.step("<command>sleep 600</command>")
    assert "did not end within 1 seconds" in observation
    assert not terminated
    env.close()


def test_the_oracle_solves_its_tasks(tasks: str):
    env = make("terminal/tasks", tasks=tasks)
    assert isinstance(env, Terminal)
    for task in (env.list_tasks() or [])[:3]:
        env.reset(task=task)
        while not (step := env.step(env.oracle()))[2]:
            pass
        assert step[1] == 1.0


def test_splits_share_no_task_and_together_have_all(tmp_path: Path):
    folder = write_samples(tmp_path, 40)
    names = [
        {task["name"] for task in make("terminal/tasks", tasks=folder, split=split).list_tasks() or []}
        for split in ("train", "validation", "test")
    ]
    assert sum(map(len, names)) == len(set.union(*names)) == 40


def test_the_given_task_is_played_and_episodes_start_fresh(env: Terminal):
    for _ in range(2):
        _, info = env.reset(task=counting_task(99).as_dict())
        assert info["task"]["name"] == "count-99"
        assert env.step("<command>ls; cat out.txt; wc -l < in.txt > out.txt</command>")[0].endswith("directory")
        assert env.step(DONE)[1] == 1.0


def test_a_broken_start_is_reported(env: Terminal):
    broken = {**counting_task(3).as_dict(), "setup": "touch in.txt out.txt"}
    with pytest.raises(ValueError, match="not as promised"):
        env.reset(task=broken)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": "/no/such/folder"}, "neither a folder of tasks"),
        ({"tasks": "csv,no-family"}, "neither a folder of tasks"),
        ({"complexity": 5}, "of complexity 5 belongs to the split train"),
        ({"turns": 0}, "above zero"),
    ],
)
def test_wrong_options_are_refused(tasks: str, options: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        make("terminal/tasks", **{"tasks": tasks, **options})


def test_a_folder_with_the_name_of_a_family_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "csv").mkdir()
    (tmp_path / "logs").write_text("")
    monkeypatch.chdir(tmp_path)
    for family in ("csv", "logs"):
        (name,) = {task["family"] for task in make("terminal/tasks", tasks=family).list_tasks() or ()}
        assert name == family
    with pytest.raises(ValueError, match="is not a folder of terminal tasks"):
        make("terminal/tasks", tasks="./csv")


def test_a_reset_that_fails_leaves_no_episode(env: Terminal):
    env.reset(seed=0)
    with pytest.raises(ValueError, match="the setup failed"):
        env.reset(task={**env.tasks[0].as_dict(), "setup": "exit 3"})
    with pytest.raises(ValueError, match="no episode is running"):
        env.step("<command>ls</command>")
