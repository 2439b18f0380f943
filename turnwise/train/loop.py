"""From a recipe to a run: imitation first where the recipe asks for it, then reinforcement; and resuming either."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from turnwise.algorithm import resolve
from turnwise.evaluate.evaluation import evaluate
from turnwise.policy.text import TextPolicy
from turnwise.runs.folder import RunFolder
from turnwise.train.config import Recipe
from turnwise.train.console import RunConsole
from turnwise.train.imitation import sft_recipe
from turnwise.train.player import Player
from turnwise.train.recipes import differences, load_recipe
from turnwise.train.setup import describe_run, load_policy, make_imitation, make_renderer, require_sound_env
from turnwise.train.trainer import Trainer

SFT = "sft"
"""The folder of the imitation stage inside a run's own."""
_FIXED = ("seed", "model", "env", "algorithm", "sft")
"""What a run is about: changing it makes another run."""


def train(recipe: Recipe, folder: Path, *, console: RunConsole) -> dict[str, Any]:
    """Train from the beginning into a new folder."""
    require_sound_env(recipe)
    policy = load_policy(recipe)
    make_renderer(recipe, policy)  # a template that does not fit is found before anything is written
    run = RunFolder.create(folder, recipe.model_dump(mode="json"), describe_run(recipe))
    if recipe.sft is not None:
        summary = _imitate(recipe, policy, folder / SFT, console=console)
        return summary if summary["status"] != "finished" else _reinforce(recipe, run, console=console)
    return _reinforce(recipe, run, console=console, policy=policy)


def imitate(recipe: Recipe, folder: Path, *, console: RunConsole) -> dict[str, Any]:
    """The imitation stage alone, in a folder of its own."""
    require_sound_env(recipe)
    return _imitate(recipe, load_policy(recipe), folder, console=console)


def resume(folder: Path, *, console: RunConsole, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Carry on from the newest whole checkpoint, in whichever stage the run was cut."""
    run = RunFolder.open(folder)
    recipe = load_recipe(folder / "config.yaml", overrides)
    before = load_recipe(folder / "config.yaml")
    _require_same_run(before, recipe)
    torch.set_num_threads(run.meta["threads"])  # sums in another order would be other sums
    if changes := differences(before, recipe):
        run.reconfigure(recipe.model_dump(mode="json"))
        console.note("changed: " + ", ".join(changes))
    if recipe.algorithm.name == "imitation":
        return _imitate(recipe, None, folder, console=console)
    if recipe.sft is not None and not _is_finished(folder / SFT):
        summary = _imitate(recipe, None, folder / SFT, console=console)
        if summary["status"] != "finished":
            return summary
    return _reinforce(recipe, run, console=console)


def evaluate_model(recipe: Recipe, model: str | Path) -> dict[str, float]:
    """Play the recipe's held-out tasks with a model: a name, or the folder of a checkpoint."""
    policy = load_policy(recipe.model_copy(update={"model": recipe.model.model_copy(update={"lora": None})}), model)
    player = Player(policy, rollout=recipe.rollout, renderer=make_renderer(recipe, policy), seed=recipe.seed)
    try:
        return evaluate(player, recipe)
    finally:
        player.close()


def _imitate(recipe: Recipe, policy: TextPolicy | None, folder: Path, *, console: RunConsole) -> dict[str, Any]:
    """Start or continue the imitation stage."""
    known = (folder / "meta.json").is_file()
    checkpoint = RunFolder.open(folder).checkpoints.latest() if known else None
    policy = policy or load_policy(recipe, _weights(recipe, checkpoint))
    imitation = make_imitation(recipe, make_renderer(recipe, policy))
    stage = sft_recipe(recipe, steps=imitation.steps)
    run = (
        RunFolder.open(folder)
        if known
        else RunFolder.create(folder, stage.model_dump(mode="json"), describe_run(stage))
    )
    console.started(stage, folder, ())
    return Trainer(stage, run, policy, console=console, imitation=imitation, checkpoint=checkpoint).run()


def _reinforce(
    recipe: Recipe, run: RunFolder, *, console: RunConsole, policy: TextPolicy | None = None
) -> dict[str, Any]:
    """Start or continue the reinforcement stage."""
    checkpoint = run.checkpoints.latest()
    if policy is None:
        first = None if recipe.sft is None else RunFolder.open(run.path / SFT).checkpoints.latest()
        policy = load_policy(recipe, _weights(recipe, checkpoint) or first)
    console.started(recipe, run.path, resolve(recipe.algorithm))
    return Trainer(recipe, run, policy, console=console, checkpoint=checkpoint).run()


def _weights(recipe: Recipe, checkpoint: Path | None) -> Path | None:
    """Where to load a resumed model from: with an adapter it is the base, into which the adapter is then put back."""
    return checkpoint if recipe.model.lora is None else None


def _is_finished(stage: Path) -> bool:
    if not (stage / "meta.json").is_file():
        return False
    run = RunFolder.open(stage)
    checkpoint = run.checkpoints.latest()
    return checkpoint is not None and int(checkpoint.name.removeprefix("step_")) == run.config["train"]["steps"]


def _require_same_run(before: Recipe, after: Recipe) -> None:
    for key in _FIXED:
        if getattr(before, key) != getattr(after, key):
            raise ValueError(f"{key} cannot change in the middle of a run; start a new one with `turnwise train`")
