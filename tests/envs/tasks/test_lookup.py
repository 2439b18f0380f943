"""Key lookup: the chain, the answers, what ends an episode, and the expert."""

import pytest

from turnwise.envs import make
from turnwise.envs.check import check_env
from turnwise.envs.tasks.lookup import KEYS, Lookup


def started(seed: int = 3, **options) -> Lookup:
    env = Lookup(**options)
    env.reset(seed=seed)
    return env


@pytest.mark.parametrize("name", ["lookup/2hop", "lookup/3hop", "lookup/mixed"])
def test_the_doctor_finds_nothing_wrong(name):
    assert check_env(name, seeds=3).ok


def test_the_table_is_one_to_one_and_new_every_episode():
    first, second = started(1), started(2)
    assert sorted(first.table.values()) == sorted(KEYS)
    assert first.table != second.table


def test_the_splits_share_no_tables():
    tables = []
    for split in ("train", "validation"):
        env = Lookup(split=split)
        env.reset(seed=0)
        tables.append(env.table)
    assert tables[0] != tables[1]


def test_the_expert_asks_for_every_hop_and_is_right():
    env = Lookup(hops=(3,))
    observation, _ = env.reset(seed=5)
    assert observation == f"3 hops from {env.start}"
    key = env.start
    for _ in range(3):
        assert env.oracle() == f"get {key}"
        observation, reward, terminated, _, info = env.step(env.oracle())
        assert (observation, reward, terminated, info["valid"]) == (env.table[key], 0.0, False, True)
        key = observation
    assert env.step(env.oracle())[:4] == ("right", 1.0, True, False)


def test_a_wrong_answer_ends_the_episode_without_reward():
    env = started()
    wrong = next(key for key in KEYS if key != env._chain()[-1])
    observation, reward, terminated, truncated, info = env.step(f"answer {wrong}")
    assert (observation, reward, terminated, truncated, info["success"]) == ("wrong", 0.0, True, False, False)


@pytest.mark.parametrize("action", ["", "get", "get a", "get a i", "get a b c", "answer  a b", "say a b", "GET a b"])
def test_what_cannot_be_read_costs_a_turn(action):
    env = started()
    observation, reward, terminated, _, info = env.step(action)
    assert (observation, reward, terminated, info["valid"]) == ("error", 0.0, False, False)
    assert env.turn == 1


def test_running_out_of_turns_is_a_loss_and_not_a_cut():
    env = started(max_turns=4)
    steps = [env.step(f"get {env.start}") for _ in range(4)]
    assert [(terminated, truncated) for _, _, terminated, truncated, _ in steps] == [(False, False)] * 3 + [
        (True, False)
    ]
    assert steps[-1][4]["success"] is False
    with pytest.raises(ValueError, match="reset"):
        env.step("get a b")


def test_the_state_is_what_has_been_looked_up():
    env = started()
    before = env._state_key()
    assert env.step("get nothing")[4]["state_key"] == before
    assert env.step(env.oracle())[4]["state_key"] == f"{before}, {env.start}: {env.table[env.start]}"


def test_only_keys_that_were_seen_can_be_looked_up():
    env = started()
    second = env.table[env.start]
    assert env.step(f"get {second}")[0] == "error"
    assert env.step(f"get {env.start}")[0] == second
    assert env.step(f"get {second}")[0] == env.table[second]


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="hops"):
        Lookup(hops=(0,))
    with pytest.raises(ValueError, match="take 4"):
        make("lookup/3hop", max_turns=3)
