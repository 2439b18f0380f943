"""The `turnwise` command. Commands import what they need when they run, so `turnwise envs` never waits for torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnwise import __version__

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


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
    """`["hops=2", "split=test"]` as arguments: values are JSON where they can be, else text. Dots nest."""
    parsed: dict[str, Any] = {}
    for setting in settings or []:
        key, value = _parse_setting(setting)
        *outer, last = key.split(".")
        inner = parsed
        for name in outer:
            inner = inner.setdefault(name, {})
        inner[last] = value
    return parsed


def _parse_setting(setting: str) -> tuple[str, Any]:
    key, equals, value = setting.partition("=")
    if not equals or not all(name.isidentifier() for name in key.split(".")):
        raise ValueError(f"cannot read {setting!r}; write arguments as key=value")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def _console() -> Console:
    # Into a file or a pipe, a row stays on its line.
    return Console(width=None if sys.stdout.isatty() else 200)


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


@app.command()
def envs(
    pattern: Annotated[str, typer.Argument(help="Show only ids and summaries that contain this text.")] = "",
) -> None:
    """List the environments there are."""
    from turnwise.envs.registry import specs

    table = Table("id", "what it is", "extra", box=None, pad_edge=False)
    for spec in specs():
        if pattern.lower() in f"{spec.id} {spec.summary}".lower():
            table.add_row(spec.id, spec.summary, spec.extra or "")
    _console().print(table if table.row_count else f"no environment matches {pattern!r}")


@app.command("check-env")
def check_env_command(
    env_id: Annotated[str, typer.Argument(metavar="ID")],
    settings: Settings = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to play.")] = 5,
    deadline: Annotated[float, typer.Option(min=0.01, help="Seconds that one reset or step may take.")] = 10.0,
) -> None:
    """Examine an environment; exit code 1 when it has defects."""
    from turnwise.envs.check import check_env

    with one_message():
        report = check_env(env_id, kwargs=parse_settings(settings), seeds=seeds, deadline=deadline)
    colours = {"pass": "green", "note": "yellow", "defect": "bold red"}
    table = Table("check", "verdict", "finding", box=None, pad_edge=False)
    for finding in report.findings:
        table.add_row(finding.check, Text(finding.verdict, colours[finding.verdict]), Text(finding.text))
    console = _console()
    console.print(table)
    console.print(f"{report.env}: " + ("fit for training" if report.ok else f"{len(report.defects)} defects"))
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def play(
    env_id: Annotated[str, typer.Argument(metavar="ID")],
    settings: Settings = None,
    seed: Annotated[int, typer.Option(help="Which episode to play.")] = 0,
) -> None:
    """Play an environment in the terminal, one line per turn. Ctrl-D ends the game."""
    from turnwise.envs.play import play_in_terminal

    with one_message():
        play_in_terminal(env_id, parse_settings(settings), seed=seed)


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
