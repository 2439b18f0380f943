"""The `turnwise` command. Commands import what they need when they run, so `turnwise envs` never waits for torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnwise import __version__
from turnwise.cli import catalog, clusters, comparing, inspection, report, reproduction, training
from turnwise.outside import look_in

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
    look_in(Path.cwd())  # the user's own modules can be named


COMMANDS = {
    "train": training.train,
    "sft": training.sft,
    "resume": training.resume,
    "eval": training.evaluate,
    "compare": comparing.compare,
    "report": report.report,
    "reproduce": reproduction.reproduce,
    "envs": catalog.envs,
    "check-env": catalog.check_env_command,
    "play": catalog.play,
    "algorithms": catalog.algorithms,
    "explain": catalog.explain_command,
    "make-nano": catalog.make_nano_command,
    "verify": inspection.verify,
    "replay": inspection.replay,
    "doctor": inspection.doctor,
}
"""Every command, in the order in which `turnwise --help` shows them."""

for name, command in COMMANDS.items():
    app.command(name)(command)

app.add_typer(clusters.app, name="cluster")
