"""Helpers that play an environment to its end."""

import random
from typing import Any

import turnwise.envs
from turnwise.envs import Env

HOSTILE = ("x" * 1_000_000, "\x00\x1b[2J\x07", "", "[" * 5000, "<answer>" * 5000, "\\boxed{" * 5000, "9" * 5000, "[-1]")
"""Actions no environment should break on."""


def make(env_id: str, **arguments: Any) -> Any:
    """The environment as its own class, whose insides the tests look at."""
    return turnwise.envs.make(env_id, **arguments)


def play_random(env: Env, seed: int, turns: int = 12) -> list[Any]:
    """All that a random episode shows."""
    seen: list[Any] = [env.reset(seed=seed)]
    for _ in range(turns):
        action = env.sample_random_action()
        step: Any = env.step(action)
        seen.append((action, *step))
        if step[2] or step[3]:
            break
    return seen


def play_oracle(env: Env, seed: int) -> tuple[list[float], dict[str, Any]]:
    """The rewards and the last info of an episode in which the expert plays."""
    env.reset(seed=seed)
    rewards: list[float] = []
    while True:
        step: Any = env.step(env.oracle())
        rewards.append(step[1])
        if step[2] or step[3]:
            return rewards, step[4]


def assert_contract(make, turns: int = 12) -> None:
    """Equal seeds give equal episodes, interleaved or not, whatever the global generators do; splits differ."""
    random.seed(11)
    first, second = make(), make()
    alone = play_random(first, seed=4, turns=turns)
    state = random.getstate()
    mixed_first, mixed_second = [first.reset(seed=4)], [second.reset(seed=4)]
    assert mixed_first == mixed_second == alone[:1]
    assert random.getstate() == state
    random.seed(12)
    assert play_random(second, seed=4, turns=turns) == alone
    assert make(split="test").reset(seed=4) != alone[0]


def assert_survives_hostile_actions(env: Env) -> None:
    """Every hostile text has a well-formed result within the reward range."""
    low, high = env.reward_range
    for action in HOSTILE:
        env.reset(seed=2)
        step: Any = env.step(action)
        observation, reward, terminated, truncated, info = step
        assert isinstance(observation, str)
        assert len(observation) < 50_000
        assert low <= reward <= high
        assert isinstance(terminated, bool)
        assert isinstance(truncated, bool)
        assert isinstance(info["valid"], bool)


def assert_snapshot_continues(env: Env) -> None:
    """After `set_state` the same actions meet the same answers, the generator's included."""
    env.reset(seed=3)
    snapshot = env.get_state()

    def go_on() -> list[Any]:
        return [(action, env.step(action)) for action in [env.sample_random_action()]]

    first = go_on()
    env.set_state(snapshot)
    assert go_on() == first
    env.set_state(snapshot)
    assert go_on() == first
