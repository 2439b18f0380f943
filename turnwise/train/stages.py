"""From a recipe to a run: imitation if the recipe asks for it, then reinforcement; and resuming either."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from turnwise.algorithm import resolve
from turnwise.console.screen import RunConsole
from turnwise.envs.faults import close_quietly
from turnwise.evaluate.evaluation import evaluate
from turnwise.exactness import changed_circumstances
from turnwise.learn.schedule import find_jump
from turnwise.policy.text import TextPolicy
from turnwise.ranks import Ranks, on_first
from turnwise.recipe.checks import find_doubts
from turnwise.recipe.loading import differences, load_recipe
from turnwise.recipe.schema import Recipe, Train
from turnwise.recipe.seating import recipe_of, seats_of, trained_policies
from turnwise.runs.checkpoints import policy_folder, step_of
from turnwise.runs.folder import JOURNALS, RunFolder
from turnwise.runs.settings import CONFIG, META
from turnwise.sources.imitation import Imitation, sft_recipe
from turnwise.sources.player import Playing
from turnwise.torch_ranks import TorchRanks, join
from turnwise.train.casting import make_cast, make_player, require_seats
from turnwise.train.resuming import require_more_steps, require_same_run
from turnwise.train.setup import (
    choose_device,
    circumstances,
    context_of,
    describe_run,
    load_policies,
    load_policy,
    make_imitation,
    make_renderer,
    note_tools,
    plays_at_all,
    require_engine,
    require_loggers,
    require_models,
    require_sound_env,
    require_templates,
)
from turnwise.train.state import read_state
from turnwise.train.text_strategy import measure_all
from turnwise.train.trainer import Trainer
from turnwise.trust import sign, why_unsigned
from turnwise.types import POLICY, Group

SFT = "sft"
"""The imitation stage's folder inside a run folder."""


def train(recipe: Recipe, folder: str | Path, *, console: RunConsole | None = None) -> dict[str, Any]:
    """Train from the beginning into a new folder. Checks everything before making the folder."""
    folder, console, ranks = Path(folder), console or _default_console(), join()
    on_first(ranks, lambda: require_sound_env(recipe, note=console.note))
    require_seats(recipe)
    require_loggers(recipe)
    policies = load_policies(recipe)
    require_models(recipe, policies)
    note_tools(recipe, policies, console.note)
    imitation = None
    if recipe.sft is not None:
        imitation = _imitation(recipe, policies, console, ranks)
    _note_unsigned(recipe, console)
    run = _create(folder, recipe, ranks)
    with _claimed(run, ranks), _removed_if_empty(folder, ranks):
        if imitation is None:
            return _reinforce(recipe, run, console=console, ranks=ranks, policies=policies)
        stage = sft_recipe(recipe, steps=imitation.steps)
        stage_run = _create(folder / SFT, stage, ranks)
        summary = _imitate(stage, stage_run, policies, imitation, console=console, ranks=ranks)
        return _after_imitation(summary, recipe, run, console=console, ranks=ranks)


def imitate(recipe: Recipe, folder: str | Path, *, console: RunConsole | None = None) -> dict[str, Any]:
    """The imitation stage alone, in a separate folder."""
    folder, console, ranks = Path(folder), console or _default_console(), join()
    recipe = recipe.model_copy(update={"stage": "imitation"})  # so that nobody asks for what a file does not need
    on_first(ranks, lambda: require_sound_env(recipe, note=console.note))
    policies = load_policies(recipe)
    require_templates(recipe, policies)
    require_engine(recipe, policies)
    imitation = _imitation(recipe, policies, console, ranks)
    _note_unsigned(recipe, console)
    stage = sft_recipe(recipe, steps=imitation.steps)
    run = _create(folder, stage, ranks)
    with _removed_if_empty(folder, ranks):
        return _shown(_imitate(stage, run, policies, imitation, console=console, ranks=ranks), console)


def resume(
    folder: str | Path, *, console: RunConsole | None = None, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Resume from the newest complete checkpoint, in whichever stage the run stopped."""
    folder, console, ranks = Path(folder), console or _default_console(), join()
    run = RunFolder.open(folder)
    with _claimed(run, ranks):
        before, recipe = (load_recipe(folder / CONFIG, changes) for changes in (None, overrides))
        if ranks.rank == 0:
            sign(folder / CONFIG, (folder / CONFIG).read_bytes(), run.config)  # resuming makes it this user's run
        require_same_run(before, recipe)
        require_more_steps(run, before, recipe)
        now = circumstances(choose_device(recipe), ranks=ranks.size)
        # An environment that is gone must not cost the old recipe.
        if plays_at_all(recipe):
            close_quietly(recipe.env.source().build())
        torch.set_num_threads(run.circumstance("threads", int))  # the order of sums affects rounding
        if changed := changed_circumstances(run.meta, now):
            console.note(f"{', '.join(changed)}: the last bits may differ from an uninterrupted run")
        if changes := differences(before, recipe):
            console.note("changed: " + ", ".join(changes))
        if recipe.stage == "imitation":
            return _shown(_resume_imitation(recipe, folder, console=console, ranks=ranks), console)
        if recipe.sft is not None and not on_first(ranks, lambda: _is_finished(folder / SFT)):
            if changes and ranks.rank == 0:  # reinforcement, which would keep them, may not begin today
                run.begin(_plain(recipe), command=sys.argv, changes=changes)
            summary = _resume_imitation(recipe, folder / SFT, console=console, ranks=ranks)
            return _after_imitation(summary, recipe, run, console=console, ranks=ranks)
        return _reinforce(recipe, run, console=console, ranks=ranks)


def evaluate_model(
    recipe: Recipe, model: str | Path, *, watch: Callable[[list[Group]], None] | None = None
) -> dict[str, float]:
    """Play the held-out tasks with a model: a name, or the folder of a checkpoint; `watch` sees the episodes."""
    if not recipe.eval.episodes:
        raise ValueError("eval.episodes is 0, so nothing would be played; name an environment and a number of tasks")
    with playing(recipe, model) as (player, policies):
        seats = {name: seats_of(recipe, name) for name in policies}
        return evaluate(player, recipe, seats, watch=watch, ranks=join()) | measure_all(recipe, policies)


@contextmanager
def playing(recipe: Recipe, model: str | Path) -> Iterator[tuple[Playing, Mapping[str, TextPolicy]]]:
    """What plays with a model as the recipe says, and the policies that come from the model."""
    sources = _parts(recipe, model)
    policies = load_policies(recipe) if recipe.policies else {}
    policies |= {name: load_policy(recipe_of(recipe, name), each, frozen=True) for name, each in sources.items()}
    require_engine(recipe, policies)
    player = make_player(recipe, make_cast(recipe, policies), ranks=join())
    try:
        yield player, {name: policies[name] for name in sources}
    finally:
        player.close()


def _parts(recipe: Recipe, model: str | Path) -> dict[str, str | Path]:
    """Where those that are evaluated come from: a checkpoint has all that learn, a model plays as the first."""
    trained = trained_policies(recipe)
    folders = {name: policy_folder(Path(model), name) for name in trained}
    return {**folders} if all(folder != Path(model) for folder in folders.values()) else {trained[0]: model}


def _note_unsigned(recipe: Recipe, console: RunConsole) -> None:
    if (reason := why_unsigned(_plain(recipe))) is not None:
        console.note(reason)


def _create(folder: Path, recipe: Recipe, ranks: Ranks) -> RunFolder:
    """A new run folder: once all ranks have found nothing wrong, rank 0 makes it and the others open it."""
    ranks.gather(None)
    on_first(ranks, lambda: RunFolder.create(folder, _plain(recipe), describe_run(recipe, ranks=ranks.size)) and None)
    return RunFolder.open(folder)


@contextmanager
def _claimed(run: RunFolder, ranks: Ranks) -> Iterator[None]:
    """Rank 0 is the run's only writer; the others begin to read when it has removed what a killed run left."""
    with run.claim() if ranks.rank == 0 else nullcontext():
        ranks.broadcast(None)
        yield


@contextmanager
def _removed_if_empty(folder: Path, ranks: Ranks) -> Iterator[None]:
    """Remove the folder of a new run that ends before recording anything, so that it does not block a retry."""
    try:
        yield
    except BaseException:  # also when another rank fails while this one still prepares
        journals = [stage / f"{name}.jsonl" for stage in (folder, folder / SFT) for name in JOURNALS]
        if (
            ranks.rank == 0
            and (folder / META).is_file()
            and not any(file.exists() and file.stat().st_size for file in journals)
        ):
            shutil.rmtree(folder)
        raise


def _imitation(recipe: Recipe, policies: Mapping[str, TextPolicy], console: RunConsole, ranks: Ranks) -> Imitation:
    """What imitation learns from: rank 0 makes it, because experts and environments need not repeat themselves."""
    (policy,) = policies.values()  # a recipe with several has no imitation
    renderer = make_renderer(recipe, policy)
    return on_first(ranks, lambda: make_imitation(recipe, renderer, room=policy.room, note=console.note))


def _imitate(
    stage: Recipe,
    run: RunFolder,
    policies: Mapping[str, TextPolicy],
    imitation: Imitation,
    *,
    console: RunConsole,
    ranks: Ranks,
) -> dict[str, Any]:
    """Start the imitation stage, or continue it where its folder has a checkpoint."""
    with _claimed(run, ranks):
        checkpoint = _newest(run, ranks)
        done = 0 if checkpoint is None else step_of(checkpoint)
        console.started(stage, run.path, _caveats(stage, run, checkpoint), done=done)
        with _meeting(ranks):
            return Trainer(
                stage, run, policies, console=console, imitation=imitation, checkpoint=checkpoint, ranks=ranks
            ).run()


def _resume_imitation(recipe: Recipe, folder: Path, *, console: RunConsole, ranks: Ranks) -> dict[str, Any]:
    is_there = on_first(ranks, lambda: (folder / META).is_file())
    run = RunFolder.open(folder) if is_there else None
    policies = load_policies(recipe, None if run is None else _newest(run, ranks))
    imitation = _imitation(recipe, policies, console, ranks)
    stage = sft_recipe(recipe, steps=imitation.steps)
    run = run or _create(folder, stage, ranks)
    return _imitate(stage, run, policies, imitation, console=console, ranks=ranks)


def _reinforce(
    recipe: Recipe,
    run: RunFolder,
    *,
    console: RunConsole,
    ranks: Ranks,
    policies: Mapping[str, TextPolicy] | None = None,
) -> dict[str, Any]:
    """Start or continue the reinforcement stage."""
    checkpoint = _newest(run, ranks)
    policies = policies or _load_stage(recipe, run, checkpoint, ranks)
    done = 0 if checkpoint is None else step_of(checkpoint)
    warnings = [*_doubts(recipe, policies), *_caveats(recipe, run, checkpoint)]
    console.started(recipe, run.path, warnings, done=done)
    with _meeting(ranks):
        trainer = Trainer(recipe, run, policies, console=console, checkpoint=checkpoint, ranks=ranks)
        return _shown(trainer.run(), console)


def _meeting(ranks: Ranks) -> AbstractContextManager[None]:
    """Where sharded layers may meet."""
    return ranks.meeting_unseen() if isinstance(ranks, TorchRanks) else nullcontext()


def _load_stage(recipe: Recipe, run: RunFolder, checkpoint: Path | None, ranks: Ranks) -> dict[str, TextPolicy]:
    """The policies of reinforcement: as a checkpoint has them, else as imitation left them."""
    if recipe.sft is None:
        return load_policies(recipe, checkpoint)
    imitated = _newest(RunFolder.open(run.path / SFT), ranks)
    return {POLICY: load_policy(recipe, imitated if checkpoint is None or recipe.model.lora else checkpoint)}


def _doubts(recipe: Recipe, policies: Mapping[str, TextPolicy]) -> list[str]:
    """Settings that are allowed but rarely intended, in words."""
    found: list[str] = []
    for name in trained_policies(recipe):
        own = recipe_of(recipe, name)
        found += [*resolve(own.algorithm), *find_doubts(own, context=context_of(own, policies[name]))]
    return list(dict.fromkeys(found))


def _after_imitation(
    summary: dict[str, Any], recipe: Recipe, run: RunFolder, *, console: RunConsole, ranks: Ranks
) -> dict[str, Any]:
    if summary["status"] != "finished":
        return _shown(summary, console)
    console.note("imitation is done, reinforcement follows")
    return _reinforce(recipe, run, console=console, ranks=ranks)


def _default_console() -> RunConsole:
    """One line per step on standard output; only the caller knows whether a live table suits the terminal."""
    return RunConsole(form="plain", out=Console(quiet=join().rank != 0))


def _shown(summary: dict[str, Any], console: RunConsole) -> dict[str, Any]:
    console.finished(summary)
    return summary


def _newest(run: RunFolder, ranks: Ranks) -> Path | None:
    """The newest complete checkpoint; None only if the run has not begun."""
    checkpoint = on_first(ranks, run.checkpoints.latest)
    if checkpoint is None and (run.checkpoints.steps() or run.metrics.size):
        raise ValueError(
            f"{run.path} has no complete checkpoint to resume from; start it again with: "
            f"turnwise train {run.path / CONFIG} --output FOLDER"
        )
    return checkpoint


def _caveats(recipe: Recipe, run: RunFolder, checkpoint: Path | None) -> list[str]:
    """Warnings for a resumed run: that the guard stopped it, and that its rate jumps."""
    if checkpoint is None:
        return []
    stopped = [policy["guard"]["stopped"] for policy in read_state(checkpoint)["policies"].values()]
    before = Train.model_validate(run.config["train"])
    jump = None if recipe.policies else find_jump(step_of(checkpoint) + 1, before, recipe.train)
    return [f"the guard stopped this run, {why}" for why in stopped if why] + ([jump] if jump else [])


def _plain(recipe: Recipe) -> dict[str, Any]:
    return recipe.model_dump(mode="json")


def _is_finished(stage: Path) -> bool:
    if not (stage / META).is_file():
        return False
    run = RunFolder.open(stage)
    with run.claim():
        pass  # nobody else will: a kill may have left something to remove
    checkpoint = run.checkpoints.latest()
    return checkpoint is not None and step_of(checkpoint) == run.config["train"]["steps"]
