"""A language model learns Dhumbal at a seat, with the settings of the recipe's page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.train.small_runs import Screen, played, rows, trajectories
from turnwise.envs import make
from turnwise.policy.pico import Family, build_model, build_tokenizer
from turnwise.recipe.loading import load_recipe
from turnwise.train.stages import imitate, train
from turnwise.types import StopReason

PAGE = Path(__file__).parents[2] / "docs" / "recipes" / "dhumbal.md"


def settings_of_the_page() -> dict[str, Any]:
    """The recipe that the page shows."""
    return yaml.safe_load(PAGE.read_text().partition("```yaml\n")[2].partition("```")[0])


def words_of_the_game(kwargs: dict[str, Any]) -> tuple[str, ...]:
    """All that a few rounds say, word by word."""
    env, words = make("cards/dhumbal", **kwargs), set[str]()
    for seed in range(40):
        text, _ = env.reset(seed=seed)  # type: ignore[misc]
        over = False
        while not over:
            action = env.oracle()
            words |= {*text.split(), *action.split()}
            text, _, over, _, _ = env.step(action)  # type: ignore[misc]
    return tuple(sorted(words))


def make_small_model(folder: Path, kwargs: dict[str, Any]) -> Path:
    """A pico model that reads and writes the words of the game."""
    family = Family(words=words_of_the_game(kwargs), context=4096, theta=10_000.0)
    build_model(0, family).save_pretrained(folder)
    build_tokenizer(family).save_pretrained(folder)
    return folder


def test_a_text_model_trains_on_the_settings_of_the_page_and_its_rounds_end(tmp_path: Path) -> None:
    page = settings_of_the_page()
    model = make_small_model(tmp_path / "model", page["env"]["kwargs"])
    common = {"device": "cpu", "engine": {"memory_gib": 0.2}, "eval": {"episodes": 0}}
    env = {**page["env"], "check": False}
    imitated = {"demonstrations": 8, "epochs": 4, "batch": 4, "learning_rate": 4e-3, "context": 4096}
    imitate(
        load_recipe(None, {**common, "model": str(model), "env": env, "sft": imitated, "rollout": page["rollout"]}),
        tmp_path / "imitated",
        console=Screen(),
    )
    rollout = {**page["rollout"], "episodes": 4}
    changes = {**page, **common, "env": env, "rollout": rollout, "train": {"steps": 1}, "algorithm": "rebn"}
    train(load_recipe(None, {**changes, "model": str(tmp_path / "imitated")}), tmp_path / "run", console=Screen())
    ended = trajectories(played(tmp_path / "run", 1))
    learner = [each for each in ended if each.seat == "player_0"]
    assert {each.stop for each in ended} == {StopReason.DONE}
    assert len(learner) == 4
    assert any(each.reward != 0 for each in learner)
    assert max(len(each.turns) for each in learner) > 8  # what a recipe has by default
    row = rows(tmp_path / "run")[0]
    assert row["rollout/cut"] == 0
    assert row["train/gradient_norm"] > 0
