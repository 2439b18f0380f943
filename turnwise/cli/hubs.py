"""The command that uploads a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column

from turnwise.cli.common import bare_table, console, one_message


def push(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    repo: Annotated[str, typer.Argument(help="Where to on the hub, such as my-name/my-model.")],
    step: Annotated[int | None, typer.Option(min=0, help="Which checkpoint; by default the newest.")] = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Only the LoRA adapter instead of merged weights.")
    ] = False,
    base: Annotated[
        str | None, typer.Option(help="The hub's name of the model that the run began with, if it was a folder.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Which policy, where several learned.")] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Make a new repository public; otherwise it is private.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show files and model card, and upload nothing.")] = False,
) -> None:
    """Upload a checkpoint to a model hub, with a model card written from the run."""
    with one_message():
        from turnwise.hub.pushing import prepare
        from turnwise.hub.pushing import push as upload

        package = prepare(run, repo, step=step, adapter=adapter, base=base, policy=policy)
        if dry_run:
            table = bare_table("file", Column("bytes", justify="right"))
            for name in package.files:
                table.add_row(name, f"{package.size(name):,}")
            console().print(table)
            kind = "public" if public else "private"
            typer.echo(
                f"\nwould go to {repo} ({kind} if it is new), from {package.checkpoint}\n\n{package.card}", nl=False
            )
            return
        with console().status(f"uploading to {repo}"):
            address = upload(package, private=not public)
    typer.echo(f"{len(package.files)} files of {package.checkpoint} are at {address}")
