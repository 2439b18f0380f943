"""A run as it was recorded: its recipe, the model it began with, its ledgers, and its learner at a kept step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from turnwise.exactness import changed_circumstances
from turnwise.policy.text import Reference
from turnwise.runs.disk import RunFolderError
from turnwise.runs.folder import RunFolder
from turnwise.runs.journal import read_journal
from turnwise.runs.ledger import read_groups
from turnwise.train.config import Recipe
from turnwise.train.imitation import IMITATION
from turnwise.train.learner import Learner
from turnwise.train.recipes import load_recipe
from turnwise.train.setup import circumstances, load_policy
from turnwise.train.stages import SFT
from turnwise.train.state import load_learner, read_state
from turnwise.types import Group


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One stage of a run, to look at: `Recording.open("runs/geo")`, or `runs/geo/sft` for its imitation."""

    run: RunFolder
    recipe: Recipe

    @classmethod
    def open(cls, folder: str | Path) -> Recording:
        """The recording in a run's folder, on the device of the run where this machine has one."""
        run = RunFolder.open(folder)
        recipe = load_recipe(run.path / "config.yaml")
        device = run.meta["device"]
        if device.startswith("cuda") and not torch.cuda.is_available():
            device = "cpu"
        return cls(run=run, recipe=recipe.model_copy(update={"device": device}))

    @property
    def imitates(self) -> bool:
        """Whether its episodes are demonstrations."""
        return self.recipe.algorithm.name == IMITATION.name

    @property
    def temperature(self) -> float:
        """What log-probs are taken at; demonstrations were sampled by nobody, least of all at a temperature."""
        return 1.0 if self.imitates else self.recipe.rollout.temperature

    def require_ledgers(self, steps: Sequence[int]) -> None:
        """Raise unless the trajectories of all these steps were written."""
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
        """What a step learnt from."""
        return read_groups(self.run.rollouts_file(step))

    def metrics(self) -> dict[int, dict[str, Any]]:
        """The rows of metrics.jsonl by step."""
        return {row["step"]: row for row in read_journal(self.run.metrics.path)}

    def guard_events(self, step: int) -> list[dict[str, Any]]:
        """What the guard saw and did after a step."""
        events = read_journal(self.run.events.path)
        return [event for event in events if event["kind"] == "guard" and event["step"] == step]

    def checkpoint(self, step: int) -> Path | None:
        """The checkpoint of a step; None where it is not kept, or not whole."""
        try:
            return self.run.checkpoints.at(step)
        except RunFolderError:
            return None

    @property
    def origin(self) -> str | Path:
        """The model with which the stage began."""
        if (first := self.checkpoint(0)) is not None:  # an adapter that is merged into it is still zero
            return first
        if self.imitates or self.recipe.sft is None:
            return self.recipe.model.name
        imitated = RunFolder.open(self.run.path / SFT).checkpoints.latest()
        if imitated is None:
            raise ValueError(f"{self.run.path / SFT} has no whole checkpoint, with which reinforcement began")
        return imitated

    def learner(self, step: int) -> Learner:
        """The learner as it was after `step` steps, of which a checkpoint is kept; 0: as it began."""
        recipe = self.recipe
        policy = load_policy(recipe, self.origin)
        learner = Learner(policy, recipe.algorithm, recipe.train, seed=recipe.seed, temperature=self.temperature)
        if step:
            checkpoint = self.run.checkpoints.at(step)
            state = read_state(checkpoint)
            load_learner(checkpoint, learner)
            learner.rate_factor = state["guard"]["learning_rate_factor"]
            renewed = state["progress"]["reference"]
            if learner.reference is not None and renewed:
                learner.reference = Reference.of_folder(self.run.checkpoints.at(renewed), like=policy)
        return learner

    def other_circumstances(self) -> list[str]:
        """What is not as it was when the run was recorded, and may change the last bits."""
        return changed_circumstances(self.run.meta, circumstances(self.recipe.device))


def spans(steps: Sequence[int]) -> str:
    """Many numbers in few words: `spans([1, 2, 3, 8])` is "1-3, 8"."""
    found: list[tuple[int, int]] = []
    for step in steps:
        if found and step == found[-1][1] + 1:
            found[-1] = (found[-1][0], step)
        else:
            found.append((step, step))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
