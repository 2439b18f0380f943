"""The env doctor before training: limited in time, heard on screen, and remembered."""

import json
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from tests.train.small_runs import small_recipe
from turnwise.envs import check_memory
from turnwise.envs.process import EnvSource
from turnwise.recipe.schema import Recipe
from turnwise.train import setup
from turnwise.train.setup import require_sound_env

ENVS = "tests.envs.broken"


def recipe(env: str, **kwargs: Any) -> Recipe:
    return small_recipe({"env": {"id": f"{ENVS}:{env}", "kwargs": kwargs, "check": True}})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path))
    return tmp_path / "env-doctor"


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The environments that were examined, one entry for each time."""
    names, check = list[str](), setup.check_env

    def count(env: str, **options: Any) -> Any:
        names.append(env)
        return check(env, **options)

    monkeypatch.setattr(setup, "check_env", count)
    return names


def test_a_slow_environment_does_not_hold_up_training_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "_DOCTOR_SECONDS", 1.0)
    monkeypatch.setattr(setup, "_NOTICED", 0.2)
    notes, started = list[str](), time.monotonic()
    require_sound_env(recipe("Slow"), note=notes.append)
    assert time.monotonic() - started < 30  # 1,800 steps of 0.05 s take 90
    assert notes[0].startswith(f"env doctor: checking {ENVS}:Slow for about 2 s at most")  # two splits
    assert any("oracle, after" in note for note in notes)
    assert sum("checking" in note for note in notes) == 1
    assert any("cut short" in note and "turnwise check-env" in note for note in notes)


def test_the_advice_is_a_command_with_everything_that_the_recipe_says() -> None:
    rewards = {"kind": "rewards", "functions": [{"function": "exact"}]}
    source = EnvSource(env="tasks/own", kwargs={"tasks": "my tasks.jsonl", "held_out": 0.2}, wrappers=(rewards,))
    words = shlex.split(setup._doctor_command(source))
    assert words[:5] == ["turnwise", "check-env", "tasks/own", "tasks=my tasks.jsonl", "held_out=0.2"]
    assert (words[5], json.loads(words[6])) == ("--wrap", rewards)
    rows = [{"question": "a" * 40, "answer": str(number)} for number in range(20)]
    assert setup._doctor_command(EnvSource(env="tasks/own", kwargs={"tasks": rows})) == "turnwise check-env tasks/own"


def test_a_sound_environment_is_examined_once(examined: list[str]) -> None:
    for _ in range(2):
        require_sound_env(recipe("Sound"))
    assert len(examined) == 2  # as in training and as in evaluation
    require_sound_env(recipe("Sound", split="test"))
    assert len(examined) > 2


def test_other_code_is_examined_again(examined: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    require_sound_env(recipe("Sound"))
    before = len(examined)
    monkeypatch.setattr(check_memory, "__version__", "another")
    require_sound_env(recipe("Sound"))
    assert len(examined) == 2 * before


def test_a_changed_file_is_examined_again(examined: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own_env.py"
    own.write_text(f"from {ENVS} import Sound\n\nclass Own(Sound):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    chosen = small_recipe({"env": {"id": "own_env:Own", "check": True}})
    require_sound_env(chosen)
    require_sound_env(chosen)
    assert len(examined) == 2
    own.write_text(own.read_text() + "# changed\n")
    require_sound_env(chosen)
    assert len(examined) == 4


def test_an_unfit_environment_is_examined_every_time(examined: list[str], cache: Path) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="unfit for training"):
            require_sound_env(recipe("GlobalRandom"))
    assert len(examined) == 2
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "file"))
    require_sound_env(recipe("Sound"))
