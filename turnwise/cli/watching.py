"""The command that shows runs live, and what `--watch` starts beside another command."""

from __future__ import annotations

import os
import secrets
import select
import subprocess
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnwise.cli.common import one_message
from turnwise.doorkeeping import from_elsewhere, is_loopback
from turnwise.ranks import is_first

if TYPE_CHECKING:
    from turnwise.watch import WatchServer

PORT = 8420
"""Where the page is, unless the port is taken: an address that can be kept."""
_TOKEN = "TURNWISE_WATCH_TOKEN"
_START_SECONDS, _END_SECONDS = 20.0, 10.0
Watch = Annotated[bool, typer.Option("--watch", help="Show it live in a browser; see `turnwise watch`.")]


def watch(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN]...", help="Run folders, or folders with runs in them; by default runs."),
    ] = None,
    evals: Annotated[
        list[Path] | None,
        typer.Option(
            "--eval", help="Files of `turnwise eval --save`, compared with the first; those in RUN/evals join."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Other addresses than this machine's need a token.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help=f"0: any free one; by default {PORT} if it is free.")] = None,
    token: Annotated[
        str, typer.Option(envvar=_TOKEN, help="What visitors from elsewhere must know.", show_default=False)
    ] = "",
    browser: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open a browser; by default if there is a screen.")
    ] = None,
    attached: Annotated[bool, typer.Option("--attached", hidden=True)] = False,
) -> None:
    """Show runs live in a browser, while they run or later. It reads their folders and changes nothing."""
    from turnwise.watch import WatchServer

    folders, saved = runs or [Path("runs")], evals or []
    with one_message():
        if saved:
            from turnwise.evaluate.saved_chapter import read_evaluations

            read_evaluations(saved)  # a wrong file is told now, not on the page
        if not is_loopback(host) and not token:
            token = secrets.token_urlsafe(24)
        server = _serve(partial(WatchServer, folders, evals=saved, host=host, token=token), port)
    with server:
        link = f"{server.address}/?token={token}" if token else server.address
        typer.echo(f"watching {', '.join(map(str, folders))} at {link}{from_elsewhere(host)}")
        if missing := [str(folder) for folder in folders if not folder.exists()]:
            typer.echo(f"{', '.join(missing)} does not exist yet: it is shown once it does", err=True)
        if browser or (browser is None and has_screen()):
            webbrowser.open(link)
        with suppress(KeyboardInterrupt):
            if attached:
                sys.stdin.buffer.read()  # ends when the command that started this ends, however it ends
                server.show_all()
            else:
                typer.echo("Ctrl-C ends it; runs go on")
                while True:
                    time.sleep(3600)


def _serve(make: Callable[..., WatchServer], port: int | None) -> WatchServer:
    """The server, on the usual port if nothing else was asked for and it is free."""
    if port is None:
        with suppress(ValueError):
            return make(port=PORT)
    return make(port=port or 0)


def has_screen() -> bool:
    """Whether somebody sits before a terminal on a machine with a display."""
    shown = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return sys.stdout.isatty() and shown and "SSH_CONNECTION" not in os.environ


@contextmanager
def watched(folder: Path, wanted: bool) -> Iterator[None]:
    """Show a folder live while the block runs, in a process of its own: whatever happens to it, the block goes on."""
    if not wanted or not is_first():
        yield
        return
    page = _start(folder)
    try:
        yield
    finally:
        if page is not None:
            _end(page)


def _start(folder: Path) -> subprocess.Popen[bytes] | None:
    """The page's process, once it has said where it is; a note if it does not."""
    command = [sys.executable, "-m", "turnwise", "watch", str(folder), "--attached"]
    try:
        page = subprocess.Popen(
            [*command, "--open" if has_screen() else "--no-open"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run
        )
    except OSError:
        page = None
    line = _first_line(page) if page is not None else ""
    typer.echo(line or f"note: the live page did not start; `turnwise watch {folder}` shows the run too", err=not line)
    return page


def _first_line(page: subprocess.Popen[bytes]) -> str:
    assert page.stdout is not None
    ready, _, _ = select.select([page.stdout], [], [], _START_SECONDS)
    return page.stdout.readline().decode().strip() if ready else ""


def _end(page: subprocess.Popen[bytes]) -> None:
    try:
        page.communicate(timeout=_END_SECONDS)  # closes its input, which ends it
    except (OSError, subprocess.TimeoutExpired):
        page.kill()
        page.wait()
