"""Every preset learns: pico ends its turns with a wanted word, which random weights do in one episode of twenty.

The shipped nano agent learns a real task from every preset in `python -m tests.torture --only learning`.
"""

import pytest

from tests.learn.preset_runs import algorithm_of, success_after, success_of
from tests.learn.small_learners import policy_for
from tests.train.small_runs import small_recipe
from turnwise.algorithm import PRESETS

START, LEARNED = 0.2, 0.4
"""Held-out success: at most so much before, at least so much after. Presets end between 0.65 and 1 over three seeds."""


@pytest.mark.parametrize("name", PRESETS)
def test_the_preset_learns(name: str) -> None:
    recipe = small_recipe(
        {
            "algorithm": algorithm_of(name),
            "rollout": {"episodes": 64},
            "train": {"steps": 12, "critic": "shared"},
            "eval": {"episodes": 64},
        }
    )
    policy = policy_for(recipe.algorithm)
    assert success_of(policy, recipe) < START
    success, crossings = success_after(policy, recipe)
    assert success > LEARNED
    # A run that learns is beyond no bound. What random weights say is seldom valid, by more or less.
    assert [crossing for crossing in crossings if crossing.metric != "rollout/valid"] == []
