"""Mistakes in a recipe: one line that names the key, what was given and what is allowed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from turnwise.recipe.loading import load_recipe


def message(overrides: dict[str, Any], source: Path | None = None) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011, the callers look at every word
        load_recipe(source, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"rolout": {}}, "unknown key rolout; did you mean rollout? The keys are name, stage, seed,"),
        (
            {"rollout": {"episods": 8}},
            "unknown key rollout.episods; did you mean rollout.episodes? The keys of rollout",
        ),
        ({"model": {"lora": {"rnk": 8}}}, "unknown key model.lora.rnk; did you mean model.lora.rank?"),
        (
            {"rollout": {"group_size": 4}},
            "did you mean 'algorithm.sampling={kind: group, size: 8}'? The keys of rollout",
        ),
        ({"lr": 1e-4}, "unknown key lr; did you mean train.learning_rate?"),
        ({"sft": {"lr": 1e-4}}, "unknown key sft.lr; did you mean sft.learning_rate?"),
        ({"sft": {"batch_size": 4}}, "unknown key sft.batch_size; did you mean sft.batch?"),
        ({"algorithm": {"gamma": 0.9}}, "unknown key algorithm.gamma; did you mean algorithm.advantage.gamma?"),
        ({"steps": 8}, "unknown key steps; did you mean train.steps? The keys are name, stage, seed,"),
        ({"rollout": {"engine_gib": 1}}, "unknown key rollout.engine_gib; did you mean engine.memory_gib?"),
        (
            {"engine": "tourch"},
            "engine.kind is 'tourch'; choose torch, turnwise, vllm, sglang, or a class as package.module:Class",
        ),
        ({"sft": {"epoch": 1}}, "unknown key sft.epoch; did you mean sft.epochs?"),
        ({"algorithm": {"epoch": 4}}, "unknown key algorithm.epoch; did you mean algorithm.epochs?"),
        (
            {"algorithm": {"critic": {"levl": "none"}}},
            "unknown key algorithm.critic.levl; did you mean algorithm.critic.l",
        ),
        (
            {"algorithm": {"surrogate": {"hig": 1}}},
            "algorithm.surrogate.ppo-clip: unknown option 'hig'; did you mean 'high'?",
        ),
        ({"guard": {"signals": {"ratio-tial": "act"}}}, "there is no signal 'ratio-tial'; did you mean ratio-tail?"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_one(overrides: dict[str, Any], words: str) -> None:
    assert words in message(overrides)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"rollout": {"episodes": 0}}, "rollout.episodes is 0; it should be greater than or equal to 1"),
        ({"model": {"dtype": "fp8"}}, "model.dtype is 'fp8'; it should be 'fp32' or 'bf16'"),
        ({"train": {"steps": "many"}}, "train.steps is 'many'; it should be a valid integer"),
        ({"guard": {"mode": "loud"}}, "guard.mode is 'loud'; it should be 'off', 'warn' or 'act'"),
        ({"rollout": 3}, "rollout is 3; it should be a mapping such as {episodes: ...}"),
        ({"sft": 3}, "sft is 3; it should be a mapping such as {chats: ...}"),
        ({"model": None}, "model is None; it should be a mapping such as {name: ...}"),
        ({"algorithm": 3}, "algorithm: it is 3; write a preset"),
        ({"algorithm": "st-pop"}, "algorithm: unknown algorithm 'st-pop'; did you mean 'st-ppo'?"),
        ({"algorithm": {"epochs": "x"}}, "algorithm.epochs: it should be a valid integer"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(overrides: dict[str, Any], words: str) -> None:
    assert message(overrides).startswith(words)


def test_every_wrong_value_has_a_line() -> None:
    lines = message({"seed": "x", "train": {"steps": 0, "warmup": -1}}).splitlines()
    assert [line.split(" is ")[0] for line in lines] == ["seed", "train.steps", "train.warmup"]


def test_a_mistake_is_put_down_to_the_file_that_made_it(tmp_path: Path) -> None:
    base, top = tmp_path / "base.yaml", tmp_path / "top.yaml"
    base.write_text("train: {steps: 0}\n")
    top.write_text("extends: base.yaml\nseed: 1\n")
    assert message({}, top).startswith(f"{tmp_path / 'base.yaml'}: train.steps is 0")
    assert message({"train": {"steps": -1}}, top).startswith("train.steps is -1")
    base.write_text("tarin: {steps: 1}\n")
    assert message({}, top).startswith(f"{tmp_path / 'base.yaml'}: unknown key tarin; did you mean train?")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed: 1\nseed: 2\n", "'seed' is given twice (again in line 2)"),
        ("seed: [1\n", "is not valid YAML"),
        ("extends: [a, b]\n", "extends is ['a', 'b']; it should be the path of one recipe"),
        ("extends: nowhere.yaml\n", "nowhere.yaml, which does not exist; give the path of one"),
        ("", "a recipe is a mapping of keys to choices"),
        ("[seed, 1]", "a recipe is a mapping of keys to choices"),
        ("algorithm: nowhere.yaml\n", "there is no file"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    assert words in message({}, file)


@pytest.mark.parametrize(
    ("episodes", "nearest"), [(100, "set it to 96 or 104"), (3, "set it to 8"), (129, "set it to 128 or 136")]
)
def test_episodes_must_hold_whole_groups(episodes: int, nearest: str) -> None:
    assert message({"algorithm": "grpo", "rollout": {"episodes": episodes}}).endswith(nearest)
    assert load_recipe(None, {"rollout": {"episodes": episodes}}).rollout.episodes == episodes


def test_an_impossible_row_is_refused_with_the_words_of_the_algorithm() -> None:
    assert "set critic.level to token" in message({"algorithm": {"critic": {"level": "none"}}})


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("search/geo-4hop", "env.id: unknown environment 'search/geo-4hop': did you mean search/geo-"),
        ({"kwargs": {"hop": 3}}, "env.kwargs: cannot build search/geo-2hop"),
        ({"held_out": {"spilt": "test"}}, "env.held_out: cannot build search/geo-2hop"),
    ],
)
def test_an_environment_that_cannot_be_built_is_refused(env: Any, words: str) -> None:
    assert message({"env": env}).startswith(words)


def test_an_unknown_environment_is_told_once_how_to_name_ones_own() -> None:
    assert message({"env": "serch/geo-2hop"}).count("module:Class") == 1


def test_held_out_arguments_are_not_looked_at_without_evaluation() -> None:
    assert load_recipe(None, {"env": {"held_out": {"spilt": 1}}, "eval": {"episodes": 0}}).eval.episodes == 0


def test_an_environment_of_the_users_own_is_left_for_when_it_is_built() -> None:
    assert load_recipe(None, {"env": "my_package.envs:Coin"}).env.id == "my_package.envs:Coin"


NAMED: list[tuple[dict[str, Any], str]] = [
    ({"id": "my_agent.py:rnu"}, "my_agent.py has no rnu; did you mean my_agent.py:run?"),
    (
        {"id": "my_agnet.py:run"},
        "there is no file my_agnet.py, which my_agnet.py:run names; did you mean my_agent.py:r",
    ),
    ({"rewards": ["my_rewards.py:rihgt"]}, "my_rewards.py has no rihgt; did you mean my_rewards.py:right?"),
    ({"id": "agent-run", "kwargs": {"program": "my_agent.py:runn"}}, "did you mean my_agent.py:run?"),
    ({"id": "tasks/own", "kwargs": {"tasks": "my_task.jsonl"}}, "no such file: my_task.jsonl; did you mean my_tasks.j"),
    ({"id": "my_agent.py:run", "kwargs": {"tasks": "no.jsonl"}}, "env.kwargs: no such file: no.jsonl; tasks= names"),
    ({"id": "tasks/own", "kwargs": {"tasks": "my_tasks.jsonl"}}, "env.rewards is empty, and tasks/own pays nothing"),
]
LOAD_EACH = """
import json, sys
from turnwise.recipe.loading import load_recipe
for env in json.loads(sys.argv[1]):
    try:
        load_recipe(None, {"env": env})
    except ValueError as error:
        print(error)
print("torch" in sys.modules)
"""


def test_what_a_recipe_names_is_looked_for_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text("def run(task, base_url, api_key):\n    return 0\n")
    (tmp_path / "my_rewards.py").write_text("import nowhere\n\n\ndef right(answer):\n    return 1\n")
    (tmp_path / "my_tasks.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    *said, torch_was_imported = subprocess.run(
        [sys.executable, "-c", LOAD_EACH, json.dumps([env for env, _ in NAMED])],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()
    for line, (_, words) in zip(said, NAMED, strict=True):
        assert words in line
    assert torch_was_imported == "False"


ROWS = [{"question": f"say {word}"} for word in "abc"]


def test_tasks_that_nobody_pays_for_are_refused_where_a_reward_would_be_read() -> None:
    unpaid = {"id": "tasks/own", "kwargs": {"tasks": ROWS}}
    for changes in (
        {"env": {**unpaid, "rewards": ["environment"]}},
        {"env": {**unpaid, "rewards": [{"function": "exact", "weight": 0}]}},
        {"env": {**unpaid, "wrappers": [{"kind": "turn-limit", "max_turns": 2}]}},
        {"env": "search/geo-1hop", "eval": {"env": unpaid}},
        {"env": unpaid, "stage": "imitation", "sft": {}},
    ):
        assert ".rewards " in (said := message(changes)), changes
        assert "tasks/own pays nothing by itself, so every reward would be 0; add for example" in said
    for changes in (
        {"env": {**unpaid, "rewards": [{"function": "exact", "success": 1}]}},
        {"env": unpaid, "judge": {"kind": "reward"}},
        {"env": unpaid, "stage": "imitation", "sft": {}, "eval": {"episodes": 0}},
    ):
        load_recipe(None, changes)


def test_a_recorded_run_can_be_looked_at_without_the_files_that_it_played(tmp_path: Path) -> None:
    env = {"id": "tasks/own", "kwargs": {"tasks": str(tmp_path / "gone.jsonl")}, "rewards": ["exact"]}
    (tmp_path / "config.yaml").write_text(json.dumps({"env": env}))
    with pytest.raises(ValueError, match="no such file"):
        load_recipe(tmp_path / "config.yaml")
    (tmp_path / "meta.json").write_text("{}")
    assert load_recipe(tmp_path / "config.yaml").env.id == "tasks/own"
    with pytest.raises(ValueError, match="no such file"):
        load_recipe(tmp_path / "config.yaml", {"eval": {"episodes": 2}})
