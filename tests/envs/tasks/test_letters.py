"""Letters: a tree with four right answers, and a bank of keys of every difficulty."""

import itertools

import pytest

from turnwise.envs import check_env, make
from turnwise.envs.tasks.letter_bank import BANK, HARD, LetterBank
from turnwise.envs.tasks.letter_tree import LETTERS, PATHS, LetterTree
from turnwise.envs.tasks.lookup import KEYS


@pytest.mark.parametrize("name", ["letters/tree", "letters/bank"])
def test_the_doctor_finds_nothing(name: str) -> None:
    assert check_env(name, seeds=3).ok


def reward(env: LetterTree | LetterBank, action: str) -> float:
    env.reset(seed=0)
    return env.step(action)[1]


def test_four_answers_of_the_tree_are_right_and_one_begins_with_each_letter() -> None:
    env = LetterTree()
    right = [word for word in map(" ".join, itertools.product(LETTERS, repeat=3)) if reward(env, word)]
    assert sorted(right) == sorted(PATHS)
    assert [path[0] for path in PATHS] == list(LETTERS)
    assert reward(env, "a c") == reward(env, "a c d d") == reward(env, "") == 0.0


def test_the_trees_expert_gives_every_answer() -> None:
    env = LetterTree()
    said: set[str] = set()
    for seed in range(40):
        env.reset(seed=seed)
        said.add(env.oracle())
    assert said == set(PATHS)


def test_the_banks_keys_are_of_every_difficulty() -> None:
    chances = sorted(chance for _, chance in BANK.values())
    assert (chances[0], chances[-1]) == pytest.approx((0.02, 0.9))
    assert set(BANK) == set(KEYS)
    assert 20 <= sum(chance < HARD for chance in chances) <= 32


def test_a_beginner_knows_each_key_as_often_as_the_bank_says() -> None:
    env, hardest, easiest = LetterBank(), min(BANK, key=lambda k: BANK[k][1]), max(BANK, key=lambda k: BANK[k][1])
    known: dict[str, int] = {}
    for key in (hardest, easiest):
        env.reset(seed=1, task=key)
        known[key] = sum(env.sample_random_action() == BANK[key][0] for _ in range(1000))
    assert known[hardest] < 50
    assert known[easiest] > 850


def test_only_hard_keys_have_the_score() -> None:
    env = LetterBank()
    for key, (answer, chance) in BANK.items():
        env.reset(seed=0, task=key)
        assert env.step(answer)[4]["scores"] == ({"hard": 1.0} if chance < HARD else {})
    with pytest.raises(ValueError, match="unknown task 'z z'; name a key such as 'a a'"):
        make("letters/bank").reset(seed=0, task="z z")
