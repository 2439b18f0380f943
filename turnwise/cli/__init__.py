"""The `turnwise` command. Commands import what they need when they run, so `turnwise envs` never waits for torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from turnwise import __version__
from turnwise.cli import (
    catalog,
    clusters,
    comparing,
    engines,
    hubs,
    inspection,
    model_serving,
    report,
    reproduction,
    rewarding,
    task_making,
    testing,
    tournaments,
    training,
    watching,
)
from turnwise.outside import look_in
from turnwise.ranks import is_first

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"turnwise {__version__}")
        raise typer.Exit


def run() -> None:
    """The command as a process. Of several that a launcher started only rank 0 prints."""
    if not is_first():
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    app()


@app.callback()
def main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Stable reinforcement learning for multi-turn language-model agents."""
    if not is_first() and context.invoked_subcommand not in SHARED:
        raise typer.Exit
    look_in(Path.cwd())  # the user's own modules can be named


COMMANDS = {
    "train": training.train,
    "sft": training.sft,
    "resume": training.resume,
    "eval": training.evaluate,
    "reward-model": rewarding.reward_model,
    "serve": model_serving.serve,
    "chat": model_serving.chat,
    "tournament": tournaments.tournament,
    "compare": comparing.compare,
    "compare-evals": report.compare_evaluations,
    "report": report.report,
    "watch": watching.watch,
    "push": hubs.push,
    "reproduce": reproduction.reproduce,
    "test-agent": testing.examine,
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
SHARED = ("train", "sft", "resume", "eval")
"""Commands whose work several ranks share; any other runs on rank 0 alone."""

for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(engines.app, name="engine")
app.add_typer(clusters.app, name="cluster")
app.add_typer(task_making.app, name="tasks")
