"""Actions of unequal length: two ways, and the microwave."""

import re
from typing import Any

import pytest

from turnwise.envs import check_env, make
from turnwise.envs.tasks.microwave import ACTIONS, STATES, Microwave
from turnwise.envs.tasks.two_ways import TwoWays
from turnwise.policy.pico import FAMILIES, build_tokenizer
from turnwise.policy.rendering import Renderer
from turnwise.sources.demonstrations import spell


@pytest.mark.parametrize("name", ["actions/two-ways", "actions/microwave"])
def test_the_doctor_finds_no_fault(name: str):
    assert check_env(name, seeds=3).ok


@pytest.mark.parametrize(
    ("action", "reward"),
    [
        ("left", 0.9),
        (" left ", 0.9),
        ("right 1 2 3 4 5 6 7 8", 1.0),
        ("right 1 2 3 4 5 6 7", 0.0),
        ("right 1 2 3 4 5 6 7 8 9", 0.0),
        ("left right", 0.0),
        ("", 0.0),
    ],
)
def test_each_way_pays_its_own_and_any_other_nothing(action: str, reward: float):
    env = TwoWays()
    env.reset(seed=1)
    _, paid, over, _, info = env.step(action)
    assert (paid, over, info["success"], info["valid"]) == (reward, True, reward == 1, reward > 0)
    assert info["scores"] == {"long": float(reward == 1), "short": float(reward == 0.9)}


@pytest.mark.parametrize(("short", "long"), [(2, 10), (3, 5), (2, 20)])
def test_ways_have_as_many_tokens_as_asked_for(short: int, long: int):
    renderer = Renderer(build_tokenizer(FAMILIES["pico-actions"]))
    env = TwoWays(short=short, long=long)
    assert [len(spell(renderer, way)) for way in env.rewards] == [short, long]
    assert [renderer.decode(spell(renderer, way)[:-1]) for way in env.rewards] == list(env.rewards)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"short": 1}, "short=1 and long=10: a way has 2 to 20 tokens, and long has more"),
        ({"short": 10}, "short=10 and long=10"),
        ({"small": 1.0}, "small is 1; the short way pays more than 0 and less than 1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=re.escape(words)):
        make("actions/two-ways", **options)


def test_three_right_actions_heat_the_food():
    env = Microwave()
    env.reset()
    steps = [env.step(action) for action in ACTIONS]
    assert [step[:3] for step in steps] == [(STATES[1], 0.0, False), (STATES[2], 0.0, False), ("done", 1.0, True)]
    assert steps[-1][4]["success"]


def test_five_turns_without_success_cost_one():
    env = Microwave()
    env.reset()
    rewards = [env.step(action)[1] for action in ("dance", ACTIONS[1], ACTIONS[0], ACTIONS[0], ACTIONS[1])]
    assert rewards == [0.0, 0.0, 0.0, 0.0, -1.0]
    with pytest.raises(ValueError, match="no episode is running"):
        env.step(ACTIONS[2])


def test_pico_actions_knows_every_word():
    tokenizer = build_tokenizer(FAMILIES["pico-actions"])
    env = TwoWays(long=20)
    texts = [*(env.reset(seed=seed)[0] for seed in range(30)), *env.rewards, *ACTIONS, *STATES]
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts
    assert {word for text in texts for word in text.split()} == set(FAMILIES["pico-actions"].words)
