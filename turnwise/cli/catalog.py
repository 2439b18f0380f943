"""Commands that list and examine: environments, algorithms, the shipped model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column
from rich.text import Text

from turnwise.cli.common import Trust, bare_table, console, findings_table, one_message, parse_settings
from turnwise.trust import trusting

if TYPE_CHECKING:
    from turnwise.algorithm import Algorithm
    from turnwise.envs.process import EnvSource
    from turnwise.envs.registry import EnvSpec

EnvName = Annotated[
    str, typer.Argument(metavar="ID", help="One of `turnwise envs`, or module:Class for your own environment.")
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Arguments of the environment: split=test hops=2; or keys of a recipe: env.rewards=[exact]",
    ),
]
Wraps = Annotated[
    list[str] | None,
    typer.Option("--wrap", help="A wrapper, such as history or '{kind: turn-limit, max_turns: 8}'; repeatable."),
]


def envs(
    pattern: Annotated[
        str, typer.Argument(help="Show only ids and summaries that contain this text; gem/ lists GEM's environments.")
    ] = "",
) -> None:
    """List the environments."""
    from turnwise.envs.registry import specs

    family = next((spec for spec in specs() if spec.names and pattern.startswith(spec.prefix)), None)
    if family is not None:
        _show_family(family, pattern)
        return
    shown = [spec for spec in specs() if pattern.lower() in f"{spec.id} {spec.summary}".lower()]
    if not shown:
        typer.echo(f"no environment matches {pattern!r}", err=True)
        raise typer.Exit(1)
    table = bare_table(Column("id", no_wrap=True), "what it is", "extra")
    for spec in shown:
        table.add_row(spec.id, spec.summary, spec.extra or "")
    console().print(table)
    if families := [spec.prefix for spec in shown if spec.names]:
        typer.echo(f"List the names of a family: turnwise envs {families[0]}")


def _show_family(family: EnvSpec, pattern: str) -> None:
    """The ids of a family that contain the pattern, one per line."""
    from turnwise.envs.registry import family_ids

    with one_message():
        ids = [each for each in family_ids(family) if pattern.lower() in each.lower()]
    if not ids:
        typer.echo(f"no environment matches {pattern!r}; all names: turnwise envs {family.prefix}", err=True)
        raise typer.Exit(1)
    typer.echo("\n".join(ids))


def check_env_command(
    env: EnvName,
    settings: Settings = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to play.")] = 5,
    deadline: Annotated[
        float | None,
        typer.Option(min=0.01, help="Seconds that one reset or step may take: 10, for your own agent 60."),
    ] = None,
    wrap: Wraps = None,
) -> None:
    """Check an environment; exit code 1 if it has defects."""
    from turnwise.envs.check import check_env

    with one_message():
        source = _source(env, settings, wrap, for_reward=True)
        report = check_env(source.env, kwargs=source.kwargs, wrappers=source.wrappers, seeds=seeds, deadline=deadline)
    console().print(findings_table(report.findings))
    console().print(Text(report.conclusion))
    raise typer.Exit(0 if report.ok else 1)


def play(
    env: EnvName,
    settings: Settings = None,
    seed: Annotated[int, typer.Option(help="Which episode to play.")] = 0,
    task: Annotated[
        str | None, typer.Option(help="One of the tasks that it lists: its name, or its place in the split from 0.")
    ] = None,
    wrap: Wraps = None,
) -> None:
    """Play an environment in the terminal, one line per turn. Ctrl-D ends the game."""
    from turnwise.envs.play import play_in_terminal

    with one_message():
        source = _source(env, settings, wrap, for_reward=False)
        play_in_terminal(source.name, source.kwargs, seed=seed, task=task, wrappers=source.wrappers)


def _source(env: str, settings: list[str] | None, wrap: list[str] | None, *, for_reward: bool) -> EnvSource:
    """How to build it; settings are its arguments, or keys of a recipe's section: `env.kwargs.hops=2 env.rewards=…`."""
    from turnwise.recipe.loading import read_env

    said = parse_settings(settings)
    keys = said.pop("env", {}) if any(each.startswith("env.") for each in settings or []) else {}
    wraps = [parse_settings([f"wrap={choice}"])["wrap"] for choice in wrap or []]
    more = {"kwargs": {**keys.get("kwargs", {}), **said}, "wrappers": [*keys.get("wrappers", []), *wraps]}
    return read_env({"id": env.removeprefix("env="), **keys, **more}, for_reward=for_reward).source()


def algorithms() -> None:
    """List the algorithms and what each needs."""
    from turnwise.algorithm import PRESETS
    from turnwise.recipe.loading import DEFAULT_ALGORITHM

    needs = {name: _needs(row) for name, (_, row) in PRESETS.items()}
    about = {name: f"{text}{' (default)' * (name == DEFAULT_ALGORITHM)}" for name, (text, _) in PRESETS.items()}
    out = console()
    if out.width >= _WIDE:
        table = bare_table("name", *_NEEDS, "what it is")
        for name, summary in about.items():
            table.add_row(name, *needs[name], Text(summary))
        out.print(table)
    else:
        names, table = (bare_table("name", *columns) for columns in (["what it is"], _NEEDS))
        for name, summary in about.items():
            names.add_row(name, Text(summary))
            table.add_row(name, *needs[name])
        out.print(names, Text(), table, sep="\n")
    typer.echo(
        "ratio: what policies are compared on; scale: what shrinks a step; updates: optimiser steps on one rollout;\n"
        "tries: episodes of one task; [I]: inferred, [M]: from memory. More: turnwise explain NAME; which to take: "
        "docs/stability.md"
    )


_NEEDS = ("critic", "ratio", "scale", "updates", "tries")
_WIDE = 130


def _needs(row: Mapping[str, Any]) -> list[str]:
    """What helps to choose: level of critic and ratio, what scales steps, how off-policy it is, and its group size.

    Reads only what the preset sets, not its parts' own defaults: those would import torch.
    """
    from turnwise.algorithm import Algorithm, Part

    choices = {name: row.get(name, field.default) for name, field in Algorithm.model_fields.items()}
    ratio, scale, sampling = (Part.model_validate(choices[axis]) for axis in ("ratio", "scale", "sampling"))
    level, updates, tries = (
        row.get("critic", {}).get("level", ""),
        choices["epochs"] * choices["minibatches"],
        sampling.options,
    )
    return [level, ratio.kind, scale.kind.replace("none", ""), str(updates), str(tries.get("size", 1))]


def explain_command(
    algorithm: Annotated[str, typer.Argument(help="A preset, a YAML file with a row, or a whole recipe.")],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[AXIS=VALUE]...", help="ratio=token surrogate.high=0.28 epochs=4")
    ] = None,
    trust: Trust = False,
) -> None:
    """Print the equation that an algorithm's row composes to."""
    from turnwise.algorithm import explain

    with one_message(), trusting(trust):
        typer.echo(explain(_find_row(algorithm).override(parse_settings(changes))), nl=False)


def _find_row(name: str) -> Algorithm:
    """A preset, the row in a file, or the row of a recipe."""
    from turnwise.algorithm import find_algorithm
    from turnwise.recipe.layers import is_recipe
    from turnwise.recipe.loading import load_recipe

    return load_recipe(name).algorithm if is_recipe(Path(name)) else find_algorithm(name)


def make_nano_command(
    output: Annotated[Path, typer.Option(help="Folder for data, tokenizer and model.")],
    seed: Annotated[int, typer.Option(help="Equal seeds make equal models.")] = 0,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1.")] = "cpu",
    minutes: Annotated[float, typer.Option(min=0.0, help="Time for training; the schedule shrinks to fit.")] = math.inf,
    stage: Annotated[list[str] | None, typer.Option(help="Only this stage; repeatable: data, train, evaluate.")] = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes that make data.")] = 1,
) -> None:
    """Make the nano model from scratch: a tiny model that can already search."""
    from turnwise.nano import make, train

    with one_message():
        if unknown := set(stage or ()) - set(make.STAGES):
            raise ValueError(f"unknown stage {min(unknown)!r}; choose from {', '.join(make.STAGES)}")
        settings, stages = train.NanoSettings(minutes=minutes), tuple(stage or make.STAGES)
        make.make_nano(output, seed=seed, device=device, settings=settings, stages=stages, processes=processes)
