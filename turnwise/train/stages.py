"""From a recipe to a run: imitation first where the recipe asks for it, then reinforcement; and resuming either."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from turnwise.algorithm import resolve
from turnwise.envs.registry import make
from turnwise.evaluate.evaluation import evaluate
from turnwise.exactness import changed_circumstances
from turnwise.policy.text import TextPolicy
from turnwise.runs.folder import CONFIG, RunFolder
from turnwise.train.config import Recipe
from turnwise.train.console import RunConsole
from turnwise.train.imitation import IMITATION, Imitation, sft_recipe
from turnwise.train.player import Player
from turnwise.train.recipes import differences, load_recipe
from turnwise.train.setup import (
    choose_device,
    circumstances,
    describe_run,
    load_policy,
    make_imitation,
    make_renderer,
    require_loggers,
    require_sound_env,
)
from turnwise.train.source import plays_in_lockstep
from turnwise.train.trainer import Trainer
from turnwise.types import Group

SFT = "sft"
"""The folder of the imitation stage inside a run's own."""
_FIXED = ("seed", "model", "env", "algorithm", "sft")
"""What a run is about: changing it makes another run."""


def train(recipe: Recipe, folder: str | Path, *, console: RunConsole | None = None) -> dict[str, Any]:
    """Train from the beginning into a new folder. Whatever can be wrong is found before the folder is made."""
    folder, console = Path(folder), console or _default_console()
    require_sound_env(recipe)
    require_loggers(recipe)
    policy = load_policy(recipe)
    renderer = make_renderer(recipe, policy)
    imitation = None if recipe.sft is None else make_imitation(recipe, renderer, note=console.note)
    run = RunFolder.create(folder, _plain(recipe), describe_run(recipe))
    with run.claim():
        if imitation is None:
            return _reinforce(recipe, run, console=console, policy=policy)
        summary = _imitate(recipe, policy, imitation, folder / SFT, console=console)
        return _after_imitation(summary, recipe, run, console=console)


def imitate(recipe: Recipe, folder: str | Path, *, console: RunConsole | None = None) -> dict[str, Any]:
    """The imitation stage alone, in a folder of its own."""
    folder, console = Path(folder), console or _default_console()
    require_sound_env(recipe)
    policy = load_policy(recipe)
    imitation = make_imitation(recipe, make_renderer(recipe, policy), note=console.note)
    return _shown(_imitate(recipe, policy, imitation, folder, console=console), console)


def resume(
    folder: str | Path, *, console: RunConsole | None = None, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Carry on from the newest whole checkpoint, in whichever stage the run was cut."""
    folder, console = Path(folder), console or _default_console()
    run = RunFolder.open(folder)
    with run.claim():
        before, recipe = (load_recipe(folder / CONFIG, changes) for changes in (None, overrides))
        _require_same_run(before, recipe)
        _require_more_steps(run, before, recipe)
        now = circumstances(choose_device(recipe))
        make(recipe.env.id, **recipe.env.kwargs).close()  # an environment that is gone must not cost the old recipe
        torch.set_num_threads(run.meta["threads"])  # sums in another order would be other sums
        if changed := changed_circumstances(run.meta, now):
            console.note(f"{', '.join(changed)}: the last bits may differ from those of a run that was left alone")
        if changes := differences(before, recipe):
            run.reconfigure(_plain(recipe))
            console.note("changed: " + ", ".join(changes))
        if recipe.algorithm.name == IMITATION.name:
            return _shown(_resume_imitation(recipe, folder, console=console), console)
        if recipe.sft is not None and not _is_finished(folder / SFT):
            summary = _resume_imitation(recipe, folder / SFT, console=console)
            return _after_imitation(summary, recipe, run, console=console)
        return _reinforce(recipe, run, console=console)


def evaluate_model(
    recipe: Recipe, model: str | Path, *, watch: Callable[[list[Group]], None] | None = None
) -> dict[str, float]:
    """Play the held-out tasks with a model: a name, or the folder of a checkpoint; `watch` sees the episodes."""
    policy = load_policy(recipe.model_copy(update={"model": recipe.model.model_copy(update={"lora": None})}), model)
    player = Player(
        policy,
        rollout=recipe.rollout,
        renderer=make_renderer(recipe, policy),
        seed=recipe.seed,
        lockstep=plays_in_lockstep(recipe),
    )
    try:
        return evaluate(player, recipe, watch=watch)
    finally:
        player.close()


def _imitate(
    recipe: Recipe, policy: TextPolicy, imitation: Imitation, folder: Path, *, console: RunConsole
) -> dict[str, Any]:
    """Start the imitation stage, or continue it where its folder has a checkpoint."""
    stage = sft_recipe(recipe, steps=imitation.steps)
    known = (folder / "meta.json").is_file()
    run = RunFolder.open(folder) if known else RunFolder.create(folder, _plain(stage), describe_run(stage))
    checkpoint = _newest(run)
    console.started(stage, folder, done=0 if checkpoint is None else _step_of(checkpoint))
    with run.claim():
        trainer = Trainer(stage, run, policy, console=console, imitation=imitation, checkpoint=checkpoint)
        return trainer.run()


def _resume_imitation(recipe: Recipe, folder: Path, *, console: RunConsole) -> dict[str, Any]:
    known = (folder / "meta.json").is_file()
    checkpoint = _newest(RunFolder.open(folder)) if known else None
    policy = load_policy(recipe, _weights(recipe, checkpoint))
    imitation = make_imitation(recipe, make_renderer(recipe, policy), note=console.note)
    return _imitate(recipe, policy, imitation, folder, console=console)


def _reinforce(
    recipe: Recipe, run: RunFolder, *, console: RunConsole, policy: TextPolicy | None = None
) -> dict[str, Any]:
    """Start or continue the reinforcement stage."""
    checkpoint = _newest(run)
    if policy is None:
        first = None if recipe.sft is None else _newest(RunFolder.open(run.path / SFT))
        policy = load_policy(recipe, _weights(recipe, checkpoint) or first)
    done = 0 if checkpoint is None else _step_of(checkpoint)
    console.started(recipe, run.path, resolve(recipe.algorithm), done=done)
    return _shown(Trainer(recipe, run, policy, console=console, checkpoint=checkpoint).run(), console)


def _after_imitation(summary: dict[str, Any], recipe: Recipe, run: RunFolder, *, console: RunConsole) -> dict[str, Any]:
    if summary["status"] != "finished":
        return _shown(summary, console)
    console.note("imitation is done, reinforcement follows")
    return _reinforce(recipe, run, console=console)


def _default_console() -> RunConsole:
    """A line per step on standard output: a live table is for a terminal of which the caller may know better."""
    return RunConsole(form="plain", out=Console())


def _shown(summary: dict[str, Any], console: RunConsole) -> dict[str, Any]:
    console.finished(summary)
    return summary


def _newest(run: RunFolder) -> Path | None:
    """The newest whole checkpoint; None only where the run has not begun."""
    checkpoint = run.checkpoints.latest()
    if checkpoint is None and (run.checkpoints.steps() or run.metrics.size):
        raise ValueError(
            f"{run.path} has no whole checkpoint left to carry on from; start it anew with: "
            f"turnwise train {run.path / CONFIG} --output FOLDER"
        )
    return checkpoint


def _plain(recipe: Recipe) -> dict[str, Any]:
    return recipe.model_dump(mode="json")


def _weights(recipe: Recipe, checkpoint: Path | None) -> Path | None:
    """Where to load a resumed model from: with an adapter it is the base, into which the adapter is then put back."""
    return checkpoint if recipe.model.lora is None else None


def _is_finished(stage: Path) -> bool:
    if not (stage / "meta.json").is_file():
        return False
    run = RunFolder.open(stage)
    checkpoint = run.checkpoints.latest()
    return checkpoint is not None and _step_of(checkpoint) == run.config["train"]["steps"]


def _require_same_run(before: Recipe, after: Recipe) -> None:
    for change in differences(before, after):
        key = change.partition(":")[0]
        if key.partition(".")[0] in _FIXED or key == "train.critic":
            command = "sft" if before.algorithm.name == IMITATION.name else "train"
            raise ValueError(f"{key} cannot change in the middle of a run; start a new one with `turnwise {command}`")


def _require_more_steps(run: RunFolder, before: Recipe, after: Recipe) -> None:
    if before.train.steps == after.train.steps:
        return
    if before.algorithm.name == IMITATION.name:
        raise ValueError("the steps of imitation follow from sft.demonstrations, sft.batch and sft.epochs")
    checkpoint = run.checkpoints.latest()
    done = 0 if checkpoint is None else _step_of(checkpoint)
    if after.train.steps < done:
        raise ValueError(f"{run.path} has done {done} steps already; train.steps={after.train.steps} must be more")


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step_"))
