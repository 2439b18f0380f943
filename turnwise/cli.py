"""The `turnwise` command. Commands import what they need when they run, so `turnwise envs` never waits for torch."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from turnwise import __version__

if TYPE_CHECKING:
    from turnwise.envs.base import Env

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

EnvName = Annotated[
    str, typer.Argument(metavar="ID", help="One of `turnwise envs`, or module:Class for an environment of your own.")
]
Settings = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Arguments of the environment: split=test hops=2")
]


@contextmanager
def one_message() -> Iterator[None]:
    """A mistake of the user ends the command with one line on stderr and exit code 2."""
    try:
        yield
    except ValueError as error:
        typer.echo(f"turnwise: {error}", err=True)
        raise typer.Exit(2) from error


def parse_settings(settings: list[str] | None) -> dict[str, Any]:
    """`["hops=2", "sampling.size=4", "sampling=group"]` as arguments: values are YAML, dots nest, in any order."""
    parsed: dict[str, Any] = {}
    for setting in settings or []:
        key, nested = _parse_setting(setting)
        for name in reversed(key.split(".")):
            nested = {name: nested}
        parsed = _merge(parsed, nested)
    return parsed


def _parse_setting(setting: str) -> tuple[str, Any]:
    key, equals, value = setting.partition("=")
    if not equals or not all(name.isidentifier() for name in key.split(".")):
        raise ValueError(f"cannot read {setting!r}; write arguments as key=value")
    try:
        return key, json.loads(value)  # first, because YAML takes 1e-5 for text
    except json.JSONDecodeError:
        pass
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        return key, value


def _merge(first: Any, second: Any) -> Any:
    """Both settings of one key; beside options a bare value is the `kind`: `group` and `{size: 4}` go together."""
    if not isinstance(first, dict) and not isinstance(second, dict):
        return second
    merged = _as_options(first)
    for key, value in _as_options(second).items():
        merged[key] = _merge(merged[key], value) if key in merged else value
    return merged


def _as_options(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {"kind": value}  # pyright: ignore[reportUnknownArgumentType]


def find_env(name: str) -> str | Callable[..., Env]:
    """A registered id as it is, `module:Class` as the class; ValueError when it is neither."""
    from turnwise.envs.registry import find

    try:
        find(name)
        return name
    except ValueError as error:
        module, colon, attribute = name.partition(":")
        if not colon:
            raise ValueError(f"{error} An environment of your own is named module:Class") from error
    try:
        env: Callable[..., Env] = getattr(import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(f"cannot import {name}: {error}; run this in the folder that holds the module") from error
    if not callable(env):
        raise ValueError(f"{name} is {env!r}; name a class of environments, or a function that makes one")
    return env


def _console() -> Console:
    # Into a file or a pipe a row stays on its line, unless the user says how wide lines may be.
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 200)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"turnwise {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Stable reinforcement learning for multi-turn language-model agents."""
    if (here := str(Path.cwd())) not in sys.path:  # as `python -m` does: the user's own modules can be named
        sys.path.insert(0, here)


@app.command()
def envs(
    pattern: Annotated[str, typer.Argument(help="Show only ids and summaries that contain this text.")] = "",
) -> None:
    """List the environments there are."""
    from turnwise.envs.registry import specs

    table = Table(Column("id", no_wrap=True), "what it is", "extra", box=None, pad_edge=False)
    for spec in specs():
        if pattern.lower() in f"{spec.id} {spec.summary}".lower():
            table.add_row(spec.id, spec.summary, spec.extra or "")
    if not table.row_count:
        typer.echo(f"no environment matches {pattern!r}", err=True)
        raise typer.Exit(1)
    _console().print(table)


@app.command("check-env")
def check_env_command(
    env: EnvName,
    settings: Settings = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to play.")] = 5,
    deadline: Annotated[float, typer.Option(min=0.01, help="Seconds that one reset or step may take.")] = 10.0,
) -> None:
    """Examine an environment; exit code 1 when it has defects."""
    from turnwise.envs.check import check_env

    with one_message():
        report = check_env(find_env(env), kwargs=parse_settings(settings), seeds=seeds, deadline=deadline)
    colours = {"pass": "green", "note": "yellow", "defect": "bold red"}
    table = Table("check", "verdict", "finding", box=None, pad_edge=False)
    for finding in report.findings:
        table.add_row(finding.check, Text(finding.verdict, colours[finding.verdict]), Text(finding.text))
    console = _console()
    console.print(table)
    console.print(Text(report.conclusion))
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def play(
    env: EnvName,
    settings: Settings = None,
    seed: Annotated[int, typer.Option(help="Which episode to play.")] = 0,
) -> None:
    """Play an environment in the terminal, one line per turn. Ctrl-D ends the game."""
    from turnwise.envs.play import play_in_terminal

    with one_message():
        play_in_terminal(find_env(env), parse_settings(settings), seed=seed)


@app.command()
def algorithms() -> None:
    """List the algorithms there are."""
    from turnwise.algorithm import PRESETS

    table = Table("name", "what it is", box=None, pad_edge=False)
    for name, (summary, _) in PRESETS.items():
        table.add_row(name, Text(summary))
    _console().print(table)


@app.command("explain")
def explain_command(
    algorithm: Annotated[str, typer.Argument(help="A preset, or a YAML file with a row of your own.")],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[AXIS=VALUE]...", help="ratio=token surrogate.high=0.28 epochs=4")
    ] = None,
) -> None:
    """Print an algorithm as the equation that its row composes to."""
    from turnwise.algorithm import explain, find_algorithm

    with one_message():
        typer.echo(explain(find_algorithm(algorithm).override(parse_settings(changes))), nl=False)


@app.command("make-nano")
def make_nano_command(
    output: Annotated[Path, typer.Option(help="Folder for data, tokenizer and model.")],
    seed: Annotated[int, typer.Option(help="Equal seeds make equal models.")] = 0,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1.")] = "cpu",
    minutes: Annotated[float, typer.Option(min=0.0, help="Time for training; the schedule shrinks to fit.")] = math.inf,
    stage: Annotated[list[str] | None, typer.Option(help="Only this stage; repeatable: data, train, evaluate.")] = None,
) -> None:
    """Make the nano model anew: a tiny model that can already search."""
    from turnwise.policy.nano import make, train

    with one_message():
        if unknown := set(stage or ()) - set(make.STAGES):
            raise ValueError(f"unknown stage {min(unknown)!r}; choose from {', '.join(make.STAGES)}")
        settings, stages = train.Settings(minutes=minutes), tuple(stage or make.STAGES)
        make.make_nano(output, seed=seed, device=device, settings=settings, stages=stages)


if __name__ == "__main__":
    app()
