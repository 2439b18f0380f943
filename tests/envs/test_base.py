"""The environment contract: seeds, splits, snapshots, and what a missing method says."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.envs import Env


class Dice(Env):
    """Rolls a die at every step; `table` stands for something large that never changes."""

    shared = frozenset({"table"})

    def __init__(self, *, split: str = "train") -> None:
        super().__init__(split=split)
        self.table, self.rolls = list(range(100)), list[int]()

    def reset(self, seed=None, task=None):
        super().reset(seed=seed)
        self.rolls = []
        return "roll", {}

    def step(self, action):
        self.rolls.append(self.rng.randrange(10**6))
        return str(self.rolls[-1]), 0.0, False, False, {}


def roll(env, count=5):
    return [env.step("")[0] for _ in range(count)]


@given(seed=st.integers(0, 2**40))
@settings(max_examples=30, deadline=None)
def test_equal_seeds_give_equal_episodes_whatever_the_global_generator_does(seed):
    first, second = Dice(), Dice()
    first.reset(seed=seed)
    expected = roll(first)
    second.reset(seed=seed)
    random.seed(seed + 1)
    assert roll(second) == expected


def test_splits_never_share_a_random_stream():
    streams = []
    for split in ("train", "validation", "test"):
        env = Dice(split=split)
        env.reset(seed=3)
        streams.append(tuple(roll(env)))
    assert len(set(streams)) == 3


def test_a_reset_without_a_seed_goes_on_in_the_stream():
    env = Dice()
    env.reset(seed=3)
    first = roll(env)
    env.reset()
    second = roll(env)
    env.reset(seed=3)
    assert roll(env, 10) == first + second


def test_a_snapshot_continues_exactly_stays_usable_and_shares_what_never_changes():
    env = Dice()
    env.reset(seed=8)
    roll(env, 2)
    state = env.get_state()
    expected = roll(env)
    other = Dice()
    for target in (env, other, env):
        target.set_state(state)
        assert len(target.rolls) == 2
        assert roll(target) == expected
    assert state["table"] is env.table is other.table
    assert state["rolls"] is not env.rolls


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="unknown split 'dev'; choose one of train, validation, test"):
        Env(split="dev")


def test_missing_methods_say_which_class_lacks_them():
    env = Env()
    with pytest.raises(NotImplementedError, match=r"Env must define step\(action\)"):
        env.step("x")
    with pytest.raises(NotImplementedError, match=r"Env has no sample_random_action\(\)"):
        env.sample_random_action()
    with pytest.raises(NotImplementedError, match=r"Env has no oracle\(\)"):
        env.oracle()
    assert not env.has_oracle()


def test_a_forgotten_base_constructor_is_named():
    class Forgetful(Env):
        def __init__(self) -> None:
            self.table = 3

    with pytest.raises(ValueError, match=r"Forgetful has no random generator; call super\(\).__init__\(\)"):
        Forgetful().reset(seed=0)
