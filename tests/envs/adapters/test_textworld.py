import pytest

pytest.importorskip("textworld", reason="needs turnwise[textworld]")

from tests.envs.adapters.play import (
    assert_contract,
    assert_snapshot_continues,
    assert_survives_hostile_actions,
    make,
    play_oracle,
)
from turnwise.envs.adapters.textworld import GAME_SEEDS
from turnwise.envs.adapters.textworld_cache import GameSettings, game_file, move_into_place

SMALL = "textworld/w2-o3-q4"


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("TURNWISE_CACHE", str(folder))
        yield folder


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [("sparse", [0, 0, 0, 1]), ("balanced", [0, 0.5, 0, 0.5]), ("dense", [0.25, 0.25, 0.25, 0.25])],
)
def test_the_walkthrough_wins_and_rewards_sum_to_one_at_every_density(rewards, expected):
    env = make(SMALL, rewards=rewards, split="test")
    env.reset(task=1)
    got, terminated, info = [], False, {}
    while not got or sum(got) < 1:
        _, reward, terminated, _, info = env.step(env.oracle())
        got.append(reward)
    assert (got, terminated, info["success"]) == (expected, True, True)


def test_the_oracle_finds_the_way_back_from_a_detour():
    env = make(SMALL, rewards="dense", split="test")
    env.reset(task=1)
    env.step(env.oracle())
    _, reward, *_ = env.step("go north")
    assert reward == 0.0
    total, info = 0.25, {}
    for _ in range(6):
        _, reward, terminated, _, info = env.step(env.oracle())
        total += reward
        if terminated:
            break
    assert total == 1.0
    assert info["success"] is True


def test_steps_run_out_at_three_times_the_quest_length():
    env = make(SMALL, split="test")
    env.reset(task=1)
    ends = [env.step("look")[2:4] for _ in range(12)]
    assert ends == [(False, False)] * 11 + [(False, True)]


def test_the_observation_shows_room_feedback_and_inventory():
    env = make(SMALL, split="test")
    first, info = env.reset(task=1)
    assert info["game_seed"] == 1
    assert "-= Studio =-" in first
    assert first.endswith("You are carrying nothing.")
    observation, _, _, _, info = env.step("take type J keycard from mantle")
    assert info["valid"] is True
    assert "You take the type J keycard from the mantle." in observation
    assert observation.endswith("You are carrying: a type J keycard.")
    assert "$$" not in first + observation


@pytest.mark.parametrize("command", ["quit", "restart", "save", "undo", "take \x00", "go é", "tw-extra-infos x"])
def test_what_would_leave_or_crash_the_interpreter_never_reaches_it(command):
    env = make(SMALL, split="test")
    env.reset(task=1)
    observation, reward, terminated, truncated, info = env.step(command)
    assert (reward, terminated, truncated, info["valid"]) == (0.0, False, False, False)
    assert "Unknown command" in observation


def test_one_action_is_one_command():
    env = make(SMALL, split="test")
    env.reset(task=1)
    env.step("take type J keycard from mantle. unlock type J chest with type J keycard")
    assert env.oracle() == "unlock type J chest with type J keycard"


def test_splits_own_disjoint_games():
    seeds = [set(numbers) for numbers in GAME_SEEDS.values()]
    assert sum(map(len, seeds)) == len(set.union(*seeds))
    assert GAME_SEEDS["test"] == range(1, 101)
    assert min(GAME_SEEDS["train"]) == 30_001
    with pytest.raises(ValueError, match="belongs to the test split"):
        make(SMALL).reset(task=7)


def test_equal_seeds_hostile_actions_and_snapshots():
    assert_contract(lambda split="train": make(SMALL, split=split), turns=4)
    env = make(SMALL)
    assert_survives_hostile_actions(env)
    assert_snapshot_continues(env)
    assert play_oracle(env, seed=2)[1]["success"] is True


def test_a_game_appears_whole_and_the_builder_who_comes_second_changes_nothing(cache, tmp_path):
    path = game_file(GameSettings(rooms=1, objects=2, quest=1), 5)
    assert path.is_relative_to(cache)
    assert [entry.name for entry in path.parent.parent.iterdir()] == ["5"]
    (tmp_path / "second").mkdir()
    move_into_place(tmp_path / "second", path.parent)
    assert path.stat().st_size > 100_000


def test_a_cached_game_is_not_built_again(monkeypatch):
    settings = GameSettings(rooms=1, objects=2, quest=1)
    path = game_file(settings, 5)
    monkeypatch.setattr("turnwise.envs.adapters.textworld_cache.make_game", None)
    assert game_file(settings, 5) == path


def test_bad_settings_name_the_fix():
    with pytest.raises(ValueError, match="at least 1"):
        make("textworld/w0-o3-q4")
    with pytest.raises(ValueError, match="sparse, balanced or dense"):
        make(SMALL, rewards="rich")


def test_a_cooking_game_shows_its_recipe_and_the_walkthrough_wins():
    env = make("textworld/cooking", rewards="dense", split="test")
    first, _ = env.reset(task=1)
    assert "Recipe #1" in first
    assert "Directions:" in first
    snapshot = env.get_state()
    env.step("eat meal")
    env.set_state(snapshot)
    got, over, info = [], False, {}
    while not over:
        _, reward, over, _, info = env.step(env.oracle())
        got.append(reward)
    assert (sum(got), info["success"]) == (pytest.approx(1.0), True)
    assert got == pytest.approx([1 / len(got)] * len(got))
    assert env.list_tasks() == list(range(1, 33))


def test_cooking_games_that_cannot_be_made_are_refused_with_what_can():
    with pytest.raises(ValueError, match="a recipe has 1 to 5 ingredients, and a house 1, 6, 9, 12 rooms"):
        make("textworld/cooking", ingredients=6)
    with pytest.raises(ValueError, match="rooms=2: "):
        make("textworld/cooking", rooms=2)
