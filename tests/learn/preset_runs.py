"""A preset learns for a few steps, watched by the bounds of the guard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.learn.small_learners import judged
from turnwise.algorithm import Need
from turnwise.evaluate.evaluation import evaluate
from turnwise.guard.bounds import Crossing, find_crossings
from turnwise.learn.learner import Learner
from turnwise.policy.rendering import Renderer
from turnwise.policy.text import TextPolicy
from turnwise.recipe.schema import Recipe
from turnwise.sources.cast import Cast
from turnwise.sources.played import Played
from turnwise.sources.player import Player
from turnwise.sources.rollout_metrics import read_rollout

_GENTLER = {"sppo": 0.02, "apo-sppo": 0.02}
"""Gradients are of the size 1/beta: the published beta of 0.001 is beyond the guard's bound for them."""
_SMALLER_GROUPS = {"dapo": 8, "minirl": 8, "minirl-r2": 8, "minirl-r3": 8, "superhf": 8, "endless-terminals": 8}
"""Groups of 16 would leave four tasks a step."""


def algorithm_of(name: str) -> dict[str, Any]:
    """The preset, as a recipe says it, for steps of 64 episodes."""
    algorithm: dict[str, Any] = {"preset": name}
    if name in _GENTLER:
        algorithm["surrogate"] = {"beta": _GENTLER[name]}
    if name in _SMALLER_GROUPS:
        algorithm["sampling"] = {"size": _SMALLER_GROUPS[name]}
    return algorithm


@contextmanager
def playing(policy: TextPolicy, recipe: Recipe) -> Iterator[Player]:
    """The policy plays alone."""
    cast = Cast.alone(policy, Renderer(policy.tokenizer))
    cast.voices[0].routing = Need.ROUTING in recipe.algorithm.needs
    player = Player(cast, rollout=recipe.rollout, seed=recipe.seed)
    try:
        yield player
    finally:
        player.close()


def success_of(policy: TextPolicy, recipe: Recipe) -> float:
    """How much of the held-out tasks it solves."""
    with playing(policy, recipe) as player:
        return evaluate(player, recipe)["eval/success"]


def success_after(policy: TextPolicy, recipe: Recipe) -> tuple[float, list[Crossing]]:
    """The same after all steps of the recipe, and what was beyond a bound on the way."""
    with playing(policy, recipe) as player:
        learner, source = Learner(policy, recipe.algorithm, recipe.train, seed=recipe.seed), Played(player, recipe)
        rows: list[dict[str, float]] = []
        crossings: list[Crossing] = []
        for step in range(1, recipe.train.steps + 1):
            groups = judged(source.groups(step))
            batch = learner.prepare(groups)
            # Where all tries of a task succeed, some presets find nothing to learn from.
            learned = {} if batch is None else learner.learn(batch, step).metrics
            row = {"step": step, **read_rollout(groups, version=step - 1), **learned}
            crossings += find_crossings(rows, row)
            rows.append(row)
            source.publish(step)
        return evaluate(player, recipe)["eval/success"], crossings
