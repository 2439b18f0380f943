"""Commands for a Ray cluster: see what it has, and run the ranks of a learner on it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from turnwise.cli.common import console, one_message

app = typer.Typer(no_args_is_help=True, help="Use a Ray cluster (turnwise[ray]).")

Address = Annotated[str | None, typer.Option(help="Of the cluster; by default RAY_ADDRESS, else this machine.")]
Ranks = Annotated[int, typer.Option(min=1, help="Processes that hold and train the policy together.")]
Cpus = Annotated[float, typer.Option(min=0.01, help="CPUs of each rank.")]
Gpus = Annotated[float, typer.Option(min=0.0, help="GPUs of each rank.")]
Arguments = Annotated[list[str] | None, typer.Argument(help="As for the command without `cluster`.")]
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command("show")
def show(address: Address = None) -> None:
    """The machines of the cluster and what they have."""
    with one_message():
        from turnwise.cluster.ray_players import list_machines

        table = Table("machine", "state", "CPUs", "GPUs", "memory, GiB", box=None)
        for machine in list_machines(address):
            table.add_row(*machine)
        console().print(table)


@app.command("train", context_settings=_PASSED_ON)
def train(
    arguments: Arguments = None, ranks: Ranks = 1, cpus: Cpus = 1.0, gpus: Gpus = 0.0, address: Address = None
) -> None:
    """`turnwise train` on several ranks that Ray places. This folder must be on a disk that all machines share."""
    _run("train", arguments, ranks, cpus, gpus, address)


@app.command("resume", context_settings=_PASSED_ON)
def resume(
    arguments: Arguments = None, ranks: Ranks = 1, cpus: Cpus = 1.0, gpus: Gpus = 0.0, address: Address = None
) -> None:
    """`turnwise resume` on several ranks that Ray places; their number may have changed."""
    _run("resume", arguments, ranks, cpus, gpus, address)


def _run(command: str, arguments: list[str] | None, ranks: int, cpus: float, gpus: float, address: str | None) -> None:
    with one_message():
        from turnwise.cluster.ray_ranks import run_ranks
        from turnwise.recipe.machines import ClusterChoice

        choice = ClusterChoice(players=ranks, cpus=cpus, gpus=gpus, address=address)
        code = run_ranks([command, *(arguments or [])], choice=choice, ranks=ranks, show=typer.echo)
    raise typer.Exit(code)
