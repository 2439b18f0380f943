"""Commands that train and evaluate. Mistakes exit with code 2 before anything is written, Ctrl-C with 130."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from turnwise.cli.common import Step, Trust, console, note_shipped, one_message, parse_settings, together
from turnwise.cli.watching import Watch, watched
from turnwise.outside import unread
from turnwise.ranks import ALONE, are_several, is_first, on_first
from turnwise.trust import outside_names, trusting
from turnwise.untrusted import printable

if TYPE_CHECKING:
    from turnwise.console.screen import RunConsole
    from turnwise.recipe.schema import Recipe
    from turnwise.types import Group

Changes = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Changes: algorithm=st-ppo train.steps=200 env.kwargs.hops=2"),
]
RecipeFile = Annotated[
    str | None, typer.Argument(metavar="[RECIPE.yaml]", help="A recipe; without one, the defaults with your changes.")
]
Output = Annotated[
    Path | None,
    typer.Option(help="A new run folder; by default runs/NAME, or runs/NAME-2 if that is taken."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the whole recipe and its cost, and start nothing.")]
Quiet = Annotated[
    bool | None,
    typer.Option("--quiet/--plain", help="Print little, or one line per step. The default suits terminal or CI."),
]
EXIT_CODES = {"finished": 0, "stopped": 1, "interrupted": 130}
"""Exit codes by how a run ended: stopped means by the guard, interrupted means by Ctrl-C."""


def train(
    recipe: RecipeFile = None,
    changes: Changes = None,
    output: Output = None,
    dry_run: DryRun = False,
    quiet: Quiet = None,
    trust: Trust = False,
    watch: Watch = False,
) -> None:
    """Train an agent. Ctrl-C finishes the step, saves, and prints how to resume."""
    if dry_run and not is_first():
        return
    with one_message(), trusting(trust), unread(dry_run), nullcontext(ALONE) if dry_run else together() as ranks:
        chosen = _load(recipe, changes)
        if dry_run:
            _show(chosen)
            return
        folder = on_first(ranks, lambda: new_folder(output, default=Path("runs") / chosen.name))
        from turnwise.train import stages

        with watched(folder, watch), _screen(folder, quiet) as screen:
            summary = stages.train(chosen, folder, console=screen)
    raise typer.Exit(EXIT_CODES[summary["status"]])


def sft(
    recipe: RecipeFile = None,
    changes: Changes = None,
    output: Output = None,
    dry_run: DryRun = False,
    quiet: Quiet = None,
    trust: Trust = False,
    watch: Watch = False,
) -> None:
    """Imitation only: from the environment's expert, or from a file of chats, prompts or ShareGPT (sft.chats=FILE)."""
    if dry_run and not is_first():
        return
    with one_message(), trusting(trust), unread(dry_run), nullcontext(ALONE) if dry_run else together() as ranks:
        # A file of chats needs no environment; who names none plays in none.
        said = [each for each in (recipe, *(changes or [])) if each is not None]
        alone = any(each.startswith("sft.chats=") for each in said) and not _names_env(said)
        imitates = [*(changes or []), "stage=imitation"]
        chosen = _load(recipe, imitates, defaults=("sft={}", *(["eval.episodes=0"] if alone else [])))
        if dry_run:
            _show(chosen)
            return
        folder = on_first(ranks, lambda: new_folder(output, default=Path("runs") / f"{chosen.name}-sft"))
        from turnwise.train import stages

        with watched(folder, watch), _screen(folder, quiet) as screen:
            summary = stages.imitate(chosen, folder, console=screen)
    raise typer.Exit(EXIT_CODES[summary["status"]])


def resume(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    changes: Changes = None,
    quiet: Quiet = None,
    trust: Trust = False,
    watch: Watch = False,
) -> None:
    """Continue a run from its newest complete checkpoint; train.steps=400 makes it longer."""
    with one_message(), trusting(trust), together(), watched(run, watch), _screen(run, quiet) as screen:
        from turnwise.train import stages

        summary = stages.resume(run, console=screen, overrides=parse_settings(changes))
    raise typer.Exit(EXIT_CODES[summary["status"]])


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN|MODEL|URL",
            help="A run folder or one of its checkpoints, a model, the address of a chat API, or oracle or random.",
        ),
    ],
    changes: Changes = None,
    step: Step = None,
    env: Annotated[str | None, typer.Option(help="Where to play; by default where the run was trained.")] = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="Held-out tasks.")] = None,
    tries: Annotated[int | None, typer.Option(min=1, help="Tries at each task, for pass@k.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")] = None,
    show: Annotated[int, typer.Option(min=0, help="Print this many episodes, turn by turn.")] = 0,
    at_address: Annotated[str | None, typer.Option("--model", help="The model to ask for at an address.")] = None,
    api_key_env: Annotated[str, typer.Option(help="The environment variable with the key of an address.")] = "",
    seconds: Annotated[float, typer.Option(min=1.0, help="Time for one request at an address.")] = 180.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once at an address.")] = 8,
    save: Annotated[
        Path | None, typer.Option(help="Write the outcome of every task to this file, for compare-evals and report.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    trust: Trust = False,
) -> None:
    """Play held-out tasks with a trained model, or any behind an address, and print its success with 95% intervals."""
    with one_message(), trusting(trust), together():
        if save is not None:
            from turnwise.evaluate.saved import require_new

            require_new(save)
        options = {"eval.episodes": episodes, "eval.tries": tries, "eval.temperature": temperature, "env": env}
        given = [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]
        from turnwise.recipe.loading import at_step, find_model, is_scripted

        model = model if step is None else at_step(model, step)
        settings, address = [*given, *(changes or [])], model.startswith(("http://", "https://"))
        own = not address and not is_scripted(model)
        recipe, weights = find_model(model, parse_settings(settings)) if own else (_recipe_at(model, settings), model)
        if recipe.stage == "preference" and not _names_env(settings):
            raise ValueError(
                f"{model} learned from pairs and was trained in no environment; say where to play, such as "
                "--env chat/prompts. Its evals.jsonl has what was measured on held-out pairs"
            )
        from turnwise.evaluate.evaluation import remarks
        from turnwise.recipe.checks import evaluation_doubts

        for doubt in [*evaluation_doubts(recipe), *_trained_on(model, recipe)]:
            typer.echo(f"note: {doubt}", err=True)

        seen: list[Group] = []
        if address:
            from turnwise.chat_endpoint import ChatEndpoint
            from turnwise.evaluate.endpoint_player import evaluate_endpoint

            key = key_in(api_key_env)
            endpoint = ChatEndpoint(model, model=at_address or "", seconds=seconds, key=key)
            row = evaluate_endpoint(recipe, endpoint, concurrency=concurrency, watch=seen.extend)
        else:
            row = _play_here(recipe, weights, seen, scripted=not own)
        for note in remarks(recipe, row, seen):
            typer.echo(f"note: {printable(note)}", err=True)
        _show_episodes(seen[:show], to_stderr=as_json)
        if save is not None and is_first():
            from turnwise.evaluate.saved import describe_evaluation, save_evaluation

            save_evaluation(save, describe_evaluation(recipe, row, seen, label=str(weights), command=sys.argv))
            typer.echo(f"saved to {save}", err=True)
    if as_json:
        typer.echo(json.dumps(row))
    else:
        _print_evaluation(recipe, str(weights), row)


def _play_here(recipe: Recipe, player: str | Path, seen: list[Group], *, scripted: bool) -> dict[str, float]:
    """The numbers of a model in this process, or of a scripted player; `seen` gets the episodes."""
    from turnwise.train.entrants import evaluate_scripted
    from turnwise.train.stages import evaluate_model

    if scripted:
        return evaluate_scripted(recipe, str(player), watch=seen.extend)
    return evaluate_model(recipe, player, watch=seen.extend)


def _print_evaluation(recipe: Recipe, label: str, row: dict[str, float]) -> None:
    from turnwise.console.views import evaluation_table
    from turnwise.recipe.seating import trained_policies
    from turnwise.runs.rows import row_of

    several = [name for name in trained_policies(recipe) if f"{name}/eval/episodes" in row]
    console().print(evaluation_table({name: row_of(row, name) for name in several} or {label: row}))


def _names_env(settings: Sequence[str]) -> bool:
    return any(each.startswith("env") for each in settings)


def _recipe_at(player: str, settings: list[str]) -> Recipe:
    """How a model behind an address plays, or a scripted player."""
    if not _names_env(settings):
        raise ValueError(f"{player} has no environment of its own; say where to play, such as --env search/geo-2hop")
    return _load(None, settings)


def _trained_on(model: str, recipe: Recipe) -> list[str]:
    """The doubt that an evaluation measures what was learned by heart."""
    from turnwise.evaluate.evaluation import trained_tasks
    from turnwise.recipe.loading import env_of_run

    trained = env_of_run(model)
    return [doubt] if trained is not None and (doubt := trained_tasks(recipe, trained)) else []


def key_in(variable: str) -> str:
    """The API key in an environment variable that the user has named."""
    if variable and not os.environ.get(variable):
        raise ValueError(f"the environment variable {variable} is not set; export it, or leave --api-key-env out")
    return os.environ.get(variable, "")


def _show_episodes(groups: list[Group], *, to_stderr: bool) -> None:
    from turnwise.console.samples import episode_text

    for group in groups:
        screen = Console(stderr=to_stderr)
        screen.print(episode_text(group.trajectories[0], title=f"held-out task {group.id}"), soft_wrap=True)


def _load(recipe: str | None, changes: list[str] | None, *, defaults: Sequence[str] = ()) -> Recipe:
    """The recipe with its changes. A first argument with an equals sign that is not a file is a change too."""
    from turnwise.recipe.loading import load_recipe

    settings = changes or []
    if recipe is not None and "=" in recipe and not os.path.exists(recipe):  # Path.exists raises on a long text
        recipe, settings = None, [recipe, *settings]
    if recipe is not None:
        note_shipped(recipe)
    return load_recipe(recipe, parse_settings([*defaults, *settings] if recipe is None else settings))


def _show(recipe: Recipe) -> None:
    """Print the whole recipe so that it can be saved; cost and notes follow as comments."""
    from turnwise.algorithm import resolve
    from turnwise.envs.places import require_place
    from turnwise.recipe.checks import find_doubts
    from turnwise.recipe.loading import dump_recipe
    from turnwise.train.estimate import estimate

    outside = outside_names(recipe.model_dump(mode="json"))
    for name in outside:
        require_place(name)
    needed = estimate(recipe)
    typer.echo(dump_recipe(recipe), nl=False)
    for line in needed.lines():
        typer.echo(f"# {line}")
    for doubt in [*resolve(recipe.algorithm), *find_doubts(recipe, context=needed.context)]:
        typer.echo(f"# note: {doubt}")
    for name in outside:
        typer.echo(f"# note: {name} was not imported; its arguments are checked when the run starts")


def new_folder(folder: Path | None, *, default: Path) -> Path:
    """The folder for a new run: a given one must be empty, the default gets a free name."""
    if folder is None:
        numbered = (default.with_name(f"{default.name}-{number}") for number in count(2))
        return next(name for name in chain([default], numbered) if not _is_taken(name))
    if _is_taken(folder):
        is_run = (folder / "meta.json").is_file()
        choice = f"continue with `turnwise resume {folder}`, or choose another folder" if is_run else "choose another"
        raise ValueError(f"{folder} is not empty, and nothing is overwritten; {choice} with --output")
    return folder


def _is_taken(folder: Path) -> bool:
    return any(folder.iterdir()) if folder.is_dir() else folder.exists()


@contextmanager
def _screen(folder: Path, quiet: bool | None) -> Iterator[RunConsole]:
    """The screen of a run. A second Ctrl-C, which does not wait for the step, exits through here."""
    from transformers.utils.logging import disable_progress_bar

    from turnwise.console.screen import RunConsole, choose_form

    form = choose_form() if quiet is None else "quiet" if quiet else "plain"
    if form != "live":
        disable_progress_bar()  # of loading and downloading: it would fill a log
    try:
        with RunConsole(form=form, out=console()) as screen:
            yield screen
    except KeyboardInterrupt as stop:
        is_saved = (folder / "meta.json").is_file()
        command = f"{'torchrun … -m ' if are_several() else ''}turnwise resume {shlex.quote(str(folder))}"
        then = f"continue with: {command}" if is_saved else "nothing was written"
        if str(stop):  # another rank is the reason
            stop.add_note(then)
            raise
        typer.echo(f"turnwise: stopped immediately; {then}", err=True)
        raise typer.Exit(EXIT_CODES["interrupted"]) from None
