"""Two policies of a run swap their weights after every few steps, as pioneer and observer do in CORY (2410.06101)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from turnwise.learn.learner import Learner
from turnwise.learn.optimizer import Optimizer
from turnwise.policy.sharding import local
from turnwise.recipe.schema import ExchangeChoice
from turnwise.train.trainee import Trainee


class Exchange:
    """The exchange of a recipe: `if exchange.is_due(step): exchange.take()`.

    Weights, critics and moments move. What belongs to a seat stays with its name: the reference, the guard, and what
    reward parts remember.
    """

    def __init__(self, choice: ExchangeChoice | None, trainees: Sequence[Trainee]) -> None:
        self._choice = choice
        learners = {trainee.name: trainee.learner for trainee in trainees}
        self._learners = [learners[name] for name in choice.policies] if choice is not None else []

    def is_due(self, step: int) -> bool:
        """Whether the policies swap after this step."""
        return self._choice is not None and step % self._choice.every == 0

    def take(self) -> dict[str, Any]:
        """Swap in place, so that an engine that shares the weights sees them; returns what the journal says of it."""
        assert self._choice is not None
        first, second = self._learners
        swap_learners(first, second)
        if self._choice.optimizer == "reset":
            for optimizer in (*_optimizers(first), *_optimizers(second)):
                optimizer.forget()
        return self._choice.model_dump(mode="json", include={"policies", "optimizer"})


def swap_learners(first: Learner, second: Learner) -> None:
    """Let two learners of equal shape trade weights, critics and the state of their optimisers, bit for bit."""
    _swap(first.policy.trainable(), second.policy.trainable())
    if first.critic is not None and second.critic is not None:
        _swap(first.critic.trainable(), second.critic.trainable())
    for mine, yours in zip(_optimizers(first), _optimizers(second), strict=True):
        kept = mine.tensors()  # loading makes new tensors, so these keep their values
        mine.load_tensors(yours.tensors())
        yours.load_tensors(kept)


def _optimizers(learner: Learner) -> list[Optimizer]:
    return [each for each in (learner.optimizer, learner.critic_optimizer) if each is not None]


@torch.no_grad()
def _swap(first: Mapping[str, nn.Parameter], second: Mapping[str, nn.Parameter]) -> None:
    for name, parameter in first.items():
        mine, yours = local(parameter), local(second[name])
        kept = mine.clone()
        mine.copy_(yours)
        yours.copy_(kept)
