import pytest

pytest.importorskip("minigrid", reason="needs turnwise[minigrid]")

from tests.envs.adapters.play import (
    assert_contract,
    assert_snapshot_continues,
    assert_survives_hostile_actions,
    make,
    play_oracle,
)

LEVELS = ["GoToRedBall", "GoToObjMazeS4", "FindObjS5", "KeyCorridorS3R1", "PutNextLocalS5N3", "UnlockPickup"]


@pytest.mark.parametrize("level", LEVELS)
def test_the_bot_solves_levels_that_need_exploring_doors_and_carrying(level):
    env = make(f"minigrid/BabyAI-{level}-v0")
    for seed in range(3):
        rewards, info = play_oracle(env, seed)
        assert info["success"] is True
        assert 0.0 < rewards[-1] <= 1.0


def test_the_bot_helps_again_after_random_steps():
    env = make("minigrid/BabyAI-GoToRedBall-v0")
    env.reset(seed=1)
    env.oracle()
    for _ in range(8):
        env.step(env.sample_random_action())
    info = {}
    for _ in range(40):
        _, _, terminated, _, info = env.step(env.oracle())
        if terminated:
            break
    assert info["success"] is True


def test_objects_are_told_by_place_and_the_mission_comes_first():
    env = make("minigrid/MiniGrid-Empty-5x5-v0")
    observation, _ = env.reset(seed=0)
    assert "Mission: get to the green goal square." in observation
    assert observation.endswith(
        "You see:\n- a green goal, 2 ahead and 2 to the right\nFree steps ahead: 2. You carry nothing."
    )
    for action in ("forward", "forward", "right", "forward"):
        env.step(action)
    _, reward, terminated, truncated, info = env.step("go forward")
    assert (terminated, truncated, info["success"]) == (True, False, True)
    assert reward == pytest.approx(1 - 0.9 * 5 / 100)


def test_levels_without_a_working_bot_say_so():
    assert make("minigrid/MiniGrid-Empty-5x5-v0").has_oracle() is False
    for level in ("KeyInBox", "PutNextS5N2Carrying", "UnlockToUnlock"):
        assert make(f"minigrid/BabyAI-{level}-v0").has_oracle() is False
    assert make("minigrid/BabyAI-GoToObj-v0").has_oracle() is True


def test_equal_seeds_hostile_actions_and_snapshots(capsys):
    assert_contract(lambda split="train": make("minigrid/BabyAI-GoToRedBall-v0", split=split))
    env = make("minigrid/BabyAI-GoToRedBall-v0")
    assert_survives_hostile_actions(env)
    assert_snapshot_continues(env)
    assert capsys.readouterr().out == ""


def test_unknown_names_the_closest():
    with pytest.raises(ValueError, match="did you mean BabyAI-GoToObj-v0"):
        make("minigrid/BabyAI-GoToObject-v0")
