"""Where a step's episodes come from: played when asked for, or ahead by at most `max_lag` versions."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.train import small_envs
from tests.train.small_runs import (
    ENVS,
    LostMachineError,
    Screen,
    Stopping,
    played,
    rows,
    run,
    small_recipe,
    step_specs,
    timeless,
    trajectories,
)
from turnwise.learn.learner import Learner
from turnwise.policy.rendering import Renderer
from turnwise.policy.text import TextPolicy
from turnwise.recipe.schema import Recipe
from turnwise.runs.folder import RunFolder
from turnwise.sources.cast import Cast
from turnwise.sources.played import Played, answers_inline
from turnwise.sources.played_ahead import PlayedAhead
from turnwise.sources.player import Player
from turnwise.sources.source import Source
from turnwise.train.state import read_ahead
from turnwise.train.trainer import Trainer


def slow(seconds: float, **algorithm: Any) -> dict[str, Any]:
    """A recipe whose environment takes its time."""
    return {
        "env": {"id": f"{ENVS}:Slow", "kwargs": {"seconds": seconds}, "check": False},
        "algorithm": {"preset": "rebn", **algorithm},
    }


def test_a_steps_episodes_follow_from_recipe_and_step_alone() -> None:
    recipe = small_recipe({"algorithm": "grpo", "rollout": {"episodes": 24}, "seed": 2})
    specs = step_specs(recipe, 3)
    assert len(specs) == 24
    assert [spec.seed for spec in specs[::8]] == [2 * 1_000_003 + number for number in (6, 7, 8)]
    assert [spec.index for spec in specs[:8]] == list(range(8))
    ids = [spec.id for step in (1, 2, 3) for spec in step_specs(recipe, step)]
    assert len(set(ids)) == 72
    assert step_specs(recipe, 3) == specs


def test_only_environments_that_answer_at_once_can_be_waited_for() -> None:
    assert answers_inline(small_recipe())
    assert answers_inline(small_recipe({"env": "search/geo-1hop"}))
    assert not answers_inline(small_recipe(slow(0.1)))  # its steps are coroutines
    assert not answers_inline(small_recipe({"env": {"id": "tests.rollout.faulty:ThreadWalk"}}))


@pytest.mark.parametrize("max_lag", [1, 2])
def test_no_turn_is_staler_than_max_lag_and_every_lag_is_recorded(tmp_path: Path, max_lag: int) -> None:
    run(tmp_path / "run", {**slow(0.02, max_lag=max_lag), "train": {"steps": 6}})
    metrics = rows(tmp_path / "run")
    assert [row["step"] for row in metrics] == [1, 2, 3, 4, 5, 6]
    for row in metrics:
        step = row["step"]
        groups = played(tmp_path / "run", step)
        assert [each.id for each in trajectories(groups)] == [spec.id for spec in step_specs(_recipe(tmp_path), step)]
        lags = [step - 1 - turn.policy_version for each in trajectories(groups) for turn in each.turns]
        assert min(lags) >= 0
        assert max(lags) <= max_lag
        assert row["rollout/lag_max"] == max(lags)
        assert row["rollout/lag_mean"] == pytest.approx(sum(lags) / len(lags))
    assert max(row["rollout/lag_max"] for row in metrics) == max_lag  # it did play ahead
    assert metrics[0]["rollout/lag_max"] == 0


def _recipe(folder: Path) -> Recipe:
    from turnwise.recipe.loading import load_recipe

    return load_recipe(folder / "run" / "config.yaml")


def test_a_synchronous_run_has_no_lag(tmp_path: Path) -> None:
    run(tmp_path / "run", slow(0.0))
    assert {row["rollout/lag_max"] for row in rows(tmp_path / "run")} == {0.0}


def train_in(recipe: Recipe, make_source: Callable[[Player, Recipe], Source]) -> None:
    policy = TextPolicy.load("pico")
    learner = Learner(policy, recipe.algorithm, recipe.train)
    player = Player(Cast.alone(policy, Renderer(policy.tokenizer)), rollout=recipe.rollout, seed=0, lockstep=False)
    learner.hold = player.paused
    source = make_source(player, recipe)
    try:
        for step in range(1, recipe.train.steps + 1):
            batch = learner.prepare(source.groups(step))
            assert batch is not None
            learner.learn(batch, step)
            source.publish(step)
    finally:
        source.close()
        player.close()


def ahead(player: Player, recipe: Recipe) -> Source:
    return PlayedAhead(player, recipe, first=1)


@pytest.mark.parametrize(
    ("make_source", "max_lag", "patience", "in_vain"),
    [(Played, 0, 0.05, {1, 2, 3, 4, 5}), (ahead, 0, 0.05, {1, 2, 3, 4, 5}), (ahead, 1, 60.0, set[int]())],
)
def test_a_step_that_waits_for_its_environments_does_not_keep_the_next_one_waiting_if_it_may_lag(
    make_source: Callable[[Player, Recipe], Source], max_lag: int, patience: float, in_vain: set[int]
) -> None:
    small_envs.Meeting.come.clear()
    small_envs.Meeting.in_vain.clear()
    kwargs = {"episodes": 16, "steps": 6, "patience": patience}
    env = {"id": f"{ENVS}:Meeting", "kwargs": kwargs, "check": False}
    algorithm = {"preset": "rebn", "max_lag": max_lag}
    train_in(small_recipe({"env": env, "algorithm": algorithm, "train": {"steps": 6}}), make_source)
    assert small_envs.Meeting.come == {1, 2, 3, 4, 5, 6}
    assert small_envs.Meeting.in_vain == in_vain


class Patient(Stopping):
    """Saves only once a later step is wholly played, so that there is something to keep."""

    trainer: Trainer

    def phase(self, name: str) -> None:
        super().phase(name)
        deadline = time.monotonic() + 60
        while name == "saving" and self.trainer.progress.step and not self.trainer.source.ahead():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_what_was_played_ahead_is_kept_by_the_checkpoint_and_learned_from_after_a_resume(tmp_path: Path) -> None:
    recipe = small_recipe({**slow(0.01, max_lag=2), "train": {"steps": 6}})
    folder = RunFolder.create(tmp_path / "run", recipe.model_dump(mode="json"), {"threads": 1})
    console = Patient(after=3)
    console.started(recipe, folder.path)
    console.trainer = Trainer(recipe, folder, {"policy": TextPolicy.load("pico")}, console=console)
    with pytest.raises(LostMachineError):
        console.trainer.run()
    checkpoint = folder.checkpoints.latest()
    assert checkpoint is not None
    assert checkpoint.name == "step_000002"
    ahead = read_ahead(checkpoint)
    assert set(ahead) <= {3, 4, 5}  # step 5 is two versions after the weights of step 2
    assert 3 in ahead
    assert run(tmp_path / "run")["step"] == 6
    for step, groups in ahead.items():
        assert played(tmp_path / "run", step) == groups
    assert [row["step"] for row in rows(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]
    assert max(row["rollout/lag_max"] for row in rows(tmp_path / "run")) <= 2


def test_steps_that_a_checkpoint_kept_are_not_played_again() -> None:
    recipe = small_recipe({**slow(0.0, max_lag=1), "train": {"steps": 3}})
    policy = TextPolicy.load("pico")
    player = Player(Cast.alone(policy, Renderer(policy.tokenizer)), rollout=recipe.rollout, seed=0, lockstep=False)
    kept = {1: player.play(step_specs(recipe, 1)), 2: player.play(step_specs(recipe, 2))}
    source = PlayedAhead(player, recipe, first=1, kept=kept)
    try:
        assert source.groups(1) is kept[1]
        assert source.groups(2) is kept[2]
        source.publish(1)
        assert len(trajectories(source.groups(3))) == 16
        assert source.ahead() == {}
    finally:
        source.close()
        player.close()


def test_closing_does_not_wait_for_episodes_in_flight() -> None:
    recipe = small_recipe(slow(30.0, max_lag=1))
    policy = TextPolicy.load("pico")
    player = Player(Cast.alone(policy, Renderer(policy.tokenizer)), rollout=recipe.rollout, seed=0, lockstep=False)
    source = PlayedAhead(player, recipe, first=1)
    time.sleep(1)  # by now every episode is in its environment
    started = time.perf_counter()
    source.close()
    player.close()
    assert time.perf_counter() - started < 25


def test_after_a_restore_nothing_is_learned_that_the_policy_given_up_has_played(tmp_path: Path) -> None:
    recipe = small_recipe({**slow(0.01, max_lag=2), "train": {"steps": 6}})
    folder = RunFolder.create(tmp_path / "run", recipe.model_dump(mode="json"), {"threads": 1})
    console = Screen()
    console.started(recipe, folder.path)
    trainer = Trainer(recipe, folder, {"policy": TextPolicy.load("pico")}, console=console)
    run_periodic_work = trainer._run_periodic_work

    def restore_after_three(step: int) -> None:
        run_periodic_work(step)
        if step == 3:
            deadline = time.monotonic() + 60
            while not trainer.source.ahead():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            trainer._restore(trainer.trainees[0])
            assert trainer.source.ahead() == {}

    trainer._run_periodic_work = restore_after_three
    assert trainer.run()["step"] == 6
    later = [one for step in (4, 5, 6) for one in trajectories(played(folder.path, step))]
    assert min(turn.policy_version for one in later for turn in one.turns) == 3


def test_a_mistake_in_the_episodes_reaches_whoever_asks_for_them() -> None:
    recipe = small_recipe(slow(0.0, max_lag=1))
    recipe = recipe.model_copy(update={"env": recipe.env.model_copy(update={"kwargs": {"second": 1}})})
    policy = TextPolicy.load("pico")
    player = Player(Cast.alone(policy, Renderer(policy.tokenizer)), rollout=recipe.rollout, seed=0, lockstep=False)
    source = PlayedAhead(player, recipe, first=1)
    try:
        with pytest.raises(ValueError, match="second"):
            source.groups(1)
    finally:
        source.close()
        player.close()


def test_a_screen_shows_an_overlapped_run_like_any_other(tmp_path: Path) -> None:
    screen = Screen()
    run(tmp_path / "run", {**slow(0.0, max_lag=1), "train": {"steps": 3}}, console=screen)
    assert "Finished 3 steps" in screen.text
    assert [row["step"] for row in timeless(tmp_path / "run")] == [1, 2, 3]
