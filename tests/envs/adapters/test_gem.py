import random

import pytest

pytest.importorskip("gem.core", reason="needs turnwise[gem]")

from tests.envs.adapters.play import assert_contract, assert_snapshot_continues, assert_survives_hostile_actions, make

NAMES = [
    "game:GuessTheNumber-v0-easy",
    "game:Mastermind-v0-hard",
    "game:Minesweeper-v0-easy",
    "game:TowerofHanoi-v0-easy",
    "game:Game2048-v0-easy",
    "rg:leg_counting",
]


@pytest.mark.parametrize("name", NAMES)
def test_hostile_actions_and_snapshots(name):
    env = make(f"gem/{name}")
    assert_survives_hostile_actions(env)
    assert_snapshot_continues(env)


@pytest.mark.parametrize("name", ["game:Minesweeper-v0-easy", "game:Game2048-v0-easy", "rg:leg_counting"])
def test_global_seeding_is_contained(name):
    assert_contract(lambda split="train": make(f"gem/{name}", split=split))


def test_two_games_interleave_as_if_alone():
    first, second = make("gem/game:Mastermind-v0-hard"), make("gem/game:Mastermind-v0-hard")
    first.reset(seed=1)
    second.reset(seed=1)
    for _ in range(5):
        action = first.sample_random_action()
        random.seed(0)
        assert second.sample_random_action() == action
        assert first.step(action) == second.step(action)


def test_a_solved_game_is_a_success_and_text_without_a_guess_is_invalid():
    env = make("gem/game:GuessTheNumber-v0-easy")
    observation, _ = env.reset(seed=0)
    assert observation.endswith("Enter your next guess.")
    _, reward, terminated, truncated, info = env.step(f"\\boxed{{{env.inner.game_number}}}")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("no guess")
    assert (reward, terminated, info["valid"], info["success"]) == (-0.1, True, False, False)


def test_a_single_turn_ends_terminated_not_truncated():
    env = make("gem/rg:leg_counting")
    env.reset(seed=0)
    observation, _, terminated, truncated, _ = env.step("\\boxed{-1}")
    assert (terminated, truncated) == (True, False)
    assert observation == "The episode is over."


def test_unknown_names_the_closest():
    with pytest.raises(ValueError, match="did you mean game:GuessTheNumber"):
        make("gem/game:GuessTheNumber-v0")
