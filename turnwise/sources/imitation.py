"""Imitation: the row that learns from demonstrations, and which of them each step sees."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.algorithm import Algorithm, Part
from turnwise.recipe.ingredients import Sft
from turnwise.recipe.schema import Recipe
from turnwise.sources.mixture import shuffled
from turnwise.types import Group

IMITATION = Algorithm(name="imitation", surrogate=Part(kind="nll"))
"""Maximise the log-prob of every demonstrated token, each counting the same; no critic, no reference."""


class Imitation:
    """Demonstrations as a source of batches: reshuffled every epoch, a short last batch kept.

    Example: 5 demonstrations with `Sft(batch=2, epochs=3)` make 9 steps, of 2, 2 and 1 demonstrations in turn.
    """

    def __init__(self, groups: Sequence[Group], sft: Sft, *, seed: int, held_out: Sequence[Group] = ()) -> None:
        if not groups:
            raise ValueError("there are no demonstrations; raise sft.demonstrations or give sft.chats a file of chats")
        self._groups, self._batch, self._epochs, self._seed = list(groups), sft.batch, sft.epochs, seed
        self.held_out = list(held_out)
        """Demonstrations that are measured and never learned from."""

    @property
    def steps(self) -> int:
        """Optimiser steps in all."""
        return self._epochs * self._steps_per_epoch

    def groups(self, step: int) -> list[Group]:
        """What step `step` learns from, counted from 1: a pure function of (seed, step)."""
        if not 1 <= step <= self.steps:
            raise ValueError(f"imitation has steps 1 to {self.steps}, not {step}; raise sft.epochs for more")
        epoch, place = divmod(step - 1, self._steps_per_epoch)
        return shuffled(self._groups, f"imitation:{self._seed}:{epoch}")[place * self._batch :][: self._batch]

    @property
    def _steps_per_epoch(self) -> int:
        return -(-len(self._groups) // self._batch)


def require_sft(recipe: Recipe) -> Sft:
    """The recipe's imitation stage; ValueError if it has none."""
    if recipe.sft is None:
        raise ValueError("the recipe has no imitation stage; add an sft section, such as sft: {demonstrations: 512}")
    return recipe.sft


def sft_recipe(recipe: Recipe, *, steps: int) -> Recipe:
    """The imitation stage as a separate recipe for the same loop; `steps` are those of its `Imitation`."""
    sft = require_sft(recipe)
    changes = {
        "steps": steps,
        "learning_rate": sft.learning_rate,
        "warmup": sft.warmup,
        "schedule": sft.schedule,
    }
    return recipe.model_copy(
        update={"stage": "imitation", "algorithm": IMITATION, "train": recipe.train.model_copy(update=changes)}
    )
