import pytest

pytest.importorskip("gymnasium", reason="needs turnwise[gymnasium]")

from tests.envs.adapters.play import (
    assert_contract,
    assert_snapshot_continues,
    assert_survives_hostile_actions,
    make,
    play_oracle,
)
from turnwise.envs.adapters.gymnasium_words import WORDS
from turnwise.envs.adapters.value_iteration import best_actions


@pytest.mark.parametrize("name", sorted(WORDS))
def test_hostile_actions_and_snapshots(name):
    env = make(f"gym/{name}")
    assert_survives_hostile_actions(env)
    assert_snapshot_continues(env)


@pytest.mark.parametrize("name", ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1"])
def test_equal_seeds_equal_episodes(name):
    assert_contract(lambda split="train": make(f"gym/{name}", split=split))


@pytest.mark.parametrize("name", ["FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4", "CliffWalking-v1"])
def test_the_planner_reaches_every_goal(name):
    env = make(f"gym/{name}")
    episodes = [play_oracle(env, seed) for seed in range(20)]
    assert all(info["success"] for _, info in episodes)
    if name == "CliffWalking-v1":
        assert {sum(rewards) for rewards, _ in episodes} == {-13.0}


def test_frozen_lake_takes_the_shortest_way_over_a_new_map_each_seed():
    env = make("gym/FrozenLake-v1")
    assert {len(play_oracle(env, seed)[0]) for seed in range(20)} == {6}
    assert len({env.reset(seed=seed)[0] for seed in range(20)}) > 10


def test_frozen_lake_moves_the_player_and_drowns_it_in_a_hole():
    env = make("gym/FrozenLake-v1", settings={"desc": ["SFFF", "FHFF", "FFFF", "FFFG"]})
    env.reset(seed=0)
    observation, reward, terminated, _, info = env.step("I think right is wise, left is not: RIGHT")
    assert observation == "S P F F\nF H F F\nF F F F\nF F F G"
    assert (reward, terminated, info["parsed_action"]) == (0.0, False, "right")
    _, reward, terminated, truncated, info = env.step("down")
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)


def test_settings_make_the_lake_slippery():
    env = make("gym/FrozenLake-v1", settings={"map_name": "4x4", "desc": None, "is_slippery": True})
    successes = [play_oracle(env, seed)[1]["success"] for seed in range(40)]
    assert 0.5 < sum(successes) / 40 < 1.0


def test_turns_without_an_action_move_nothing_and_are_counted():
    env = make("gym/FrozenLake-v1")
    env.reset(seed=0)
    ends, observation = [], ""
    for _ in range(100):
        observation, reward, terminated, truncated, info = env.step("hmm")
        assert (reward, info["valid"]) == (0.0, False)
        ends.append((terminated, truncated))
    assert observation.startswith("Name one action: left, down, right, up.")
    assert ends == [(False, False)] * 99 + [(False, True)]


def test_value_iteration_prefers_the_short_way_and_avoids_the_trap():
    goal, trap = [(1.0, 1, 1.0, True)], [(1.0, 2, -1.0, True)]
    stay = {0: [(1.0, 1, 0.0, True)], 1: [(1.0, 1, 0.0, True)]}
    assert best_actions({0: {0: trap, 1: goal}, 1: stay, 2: stay}) == [1, 0, 0]


def test_unknown_names_the_closest():
    with pytest.raises(ValueError, match="did you mean Taxi-v4"):
        make("gym/Taxi-v3")
