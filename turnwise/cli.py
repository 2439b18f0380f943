"""The `turnwise` command. Commands import what they need when they run, so `turnwise envs` never waits for torch."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from turnwise import __version__

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


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
    Console().print(table if table.row_count else f"no environment matches {pattern!r}")
