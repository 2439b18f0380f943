"""A run as it was recorded: its recipe, the model it began with, its ledgers, and its learner at a kept step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from turnwise.exactness import changed_circumstances
from turnwise.learn.learner import Learner
from turnwise.policy.learnable import Policy, Scorer
from turnwise.policy.text import Reference
from turnwise.recipe.loading import load_recipe
from turnwise.recipe.schema import Recipe
from turnwise.recipe.seating import policies_of, recipe_of, seats_of
from turnwise.rollout.scheduler import at_seats
from turnwise.runs.checkpoints import policy_folder
from turnwise.runs.disk import RunFolderError
from turnwise.runs.folder import RunFolder
from turnwise.runs.ledger import read_groups
from turnwise.runs.reading import RunData, read_whole_run
from turnwise.train.resuming import FIXED
from turnwise.train.setup import circumstances, load_policy
from turnwise.train.stages import SFT
from turnwise.train.state import hand_over, load_learner, read_state
from turnwise.types import Group

_CHANGING = tuple(name for name in Recipe.model_fields if name not in (*FIXED, "device"))
"""Sections that a resumed run may change."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One recorded stage of a run: `Recording.open("runs/geo")`, or `runs/geo/sft` for its imitation."""

    run: RunFolder
    recipe: Recipe

    @classmethod
    def open(cls, folder: str | Path) -> Recording:
        """The recording in a run's folder, on the run's device if this machine has one."""
        run = RunFolder.open(folder)
        recipe = load_recipe(run.path / "config.yaml")
        run.check_journals()
        device = run.circumstance("device", str)
        if device.startswith("cuda") and not torch.cuda.is_available():
            device = "cpu"
        return cls(run=run, recipe=recipe.model_copy(update={"device": device}))

    @property
    def imitates(self) -> bool:
        """Whether its episodes are demonstrations."""
        return self.recipe.stage == "imitation"

    def recipe_at(self, step: int) -> Recipe:
        """The recipe of a step: a run may have been resumed with changes."""
        fixed = {name: getattr(self.recipe, name) for name in FIXED}  # the history must not name other code
        try:
            then = Recipe.model_validate({**self.run.config_at(step), **fixed})
            changed = {name: getattr(then, name) for name in _CHANGING}
        except ValidationError:
            raise RunFolderError(f"{self.run.history.path} has no valid recipe for step {step}") from None
        return self.recipe.model_copy(update=changed)

    def temperature(self, step: int) -> float:
        """The temperature of log-probs; demonstrations were not sampled and have none."""
        return 1.0 if self.imitates else self.recipe_at(step).rollout.temperature

    def require_ledgers(self, steps: Sequence[int]) -> None:
        """Raise unless the trajectories of all these steps are on disk."""
        recorded = set(self.run.rollout_steps())
        if not recorded:
            raise ValueError(
                f"{self.run.path} has no trajectories on disk; train with log.rollouts=1, which writes those of every "
                "step"
            )
        if missing := [step for step in steps if step not in recorded]:
            raise ValueError(
                f"{self.run.path} has no trajectories of step {missing[0]}; it has those of step "
                f"{spans(sorted(recorded))}, and log.rollouts=1 writes those of every step"
            )

    def groups(self, step: int) -> list[Group]:
        """The episodes of a step."""
        return read_groups(self.run.rollouts_file(step))

    @cached_property
    def journals(self) -> RunData:
        """Its journals; RunFolderError if one is damaged."""
        return read_whole_run(self.run.path)

    def metrics(self) -> dict[int, dict[str, Any]]:
        """The rows of metrics.jsonl by step."""
        return {row["step"]: row for row in self.journals.metrics}

    def guard_events(self, step: int) -> list[dict[str, Any]]:
        """The guard's events after a step."""
        return [event for event in self.journals.incidents if event["step"] == step]

    def checkpoint(self, step: int) -> Path | None:
        """The checkpoint of a step; None if it is missing or incomplete."""
        return self.run.checkpoints.find(step)

    def groups_of(self, name: str, step: int) -> list[Group]:
        """What a policy learned from in a step: the episodes at its seats."""
        return at_seats(self.groups(step), seats_of(self.recipe, name))

    def origin(self, name: str) -> str | Path:
        """The model with which a policy began the stage."""
        frozen, model = policies_of(self.recipe)[name].frozen, recipe_of(self.recipe, name).model
        from_model = self.imitates or self.recipe.sft is None
        if from_model and model.lora is not None and model.lora.adapter is not None:
            return model.name
        if (first := self.checkpoint(0)) is not None and not frozen:  # an adapter merged into it is still zero
            return policy_folder(first, name)
        if from_model:
            return model.name
        imitated = RunFolder.open(self.run.path / SFT).checkpoints.latest()
        if imitated is None:
            raise ValueError(f"{self.run.path / SFT} has no complete checkpoint, and reinforcement started from it")
        return imitated

    def learner(self, name: str, step: int) -> Learner:
        """A policy's learner after `step` steps, from its checkpoint; 0: at the start."""
        policy = load_policy(recipe_of(self.recipe, name), self.origin(name))
        learner = self._make_learner(name, policy, step + 1)
        if step:
            checkpoint = self.run.checkpoints.at(step)
            state = read_state(checkpoint)["policies"][name]
            load_learner(checkpoint, learner)
            learner.rate_factor = state["guard"]["learning_rate_factor"]
            if renewed := state["standing"]["reference"]:
                folder = policy_folder(self.run.checkpoints.at(renewed), name)
                learner.reference = Reference.of_folder(folder, like=policy)
        return learner

    def successor(self, learner: Learner, step: int) -> Learner:
        """The learner as rebuilt when the run was resumed before `step` with a change."""
        changed = self._make_learner(learner.name, learner.policy, step, learner.reference)
        hand_over(learner, changed)
        return changed

    def _make_learner(self, name: str, policy: Policy, step: int, reference: Scorer | None = None) -> Learner:
        recipe = recipe_of(self.recipe_at(step), name)
        return Learner(
            policy,
            recipe.algorithm,
            recipe.train,
            seed=recipe.seed,
            temperature=self.temperature(step),
            reference=reference,
            name=name,
        )

    def other_circumstances(self) -> list[str]:
        """What has changed since the run was recorded and may change the last bits."""
        return changed_circumstances(self.run.meta, circumstances(self.recipe.device))


def spans(steps: Sequence[int]) -> str:
    """Step numbers as ranges: `spans([1, 2, 3, 8])` is "1-3, 8"."""
    found: list[tuple[int, int]] = []
    for step in steps:
        if found and step == found[-1][1] + 1:
            found[-1] = (found[-1][0], step)
        else:
            found.append((step, step))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
