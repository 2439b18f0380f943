"""What the commands share: reading settings, one message per mistake, findings as a table."""

from __future__ import annotations

import json
import os
import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from turnwise.ranks import ALONE, Ranks, are_several
from turnwise.untrusted import parse_shallow, printable

if TYPE_CHECKING:
    from turnwise.envs.check import Finding

Trust = Annotated[
    bool, typer.Option("--trust", help="Run code named by a run folder from elsewhere; see docs/trust.md.")
]
Step = Annotated[
    str | None, typer.Option(help="Of a run: the checkpoint of this step, or best; by default the newest.")
]
VERDICT_COLOURS = {"pass": "green", "note": "yellow", "defect": "bold red"}
"""Colour of a check's verdict."""


@contextmanager
def one_message() -> Iterator[None]:
    """A user's mistake ends the command with one line on stderr and exit code 2."""
    try:
        yield
    except ValueError as error:
        typer.echo(f"turnwise: {printable(str(error))}", err=True)
        raise typer.Exit(2) from error


@contextmanager
def together() -> Iterator[Ranks]:
    """Run a command on all ranks that a launcher started: what ends one of them ends all, with one message."""
    if not are_several():
        yield ALONE
        return
    from turnwise.torch_ranks import RankEnded, TorchRanks, join

    ranks = join()
    assert isinstance(ranks, TorchRanks)
    try:
        with ranks.bound():
            try:
                yield ranks
            except RankEnded:
                raise
            except BaseException as error:
                code = _exit_code(error)
                if not ranks.report(_described(error), code=code):
                    raise typer.Exit(code) from error
                sys.stderr = sys.__stderr__  # rank 0 did not hear it
                raise
    except RankEnded as ended:
        if ended.speaker == ranks.rank:
            text = "; ".join([str(ended), *getattr(ended, "__notes__", ())])
            typer.echo(f"turnwise: {printable(text)}", file=sys.__stderr__)
        raise typer.Exit(ended.code) from ended


def _exit_code(error: BaseException) -> int:
    if isinstance(error, typer.Exit):
        return error.exit_code
    return 2 if isinstance(error, ValueError) else 130 if isinstance(error, KeyboardInterrupt) else 1


def _described(error: BaseException) -> str:
    """An error in the words that another rank says it in; what was not foreseen with its stack trace."""
    if isinstance(error, typer.Exit | KeyboardInterrupt):
        return "stopped"
    return str(error) if isinstance(error, ValueError) else "".join(traceback.format_exception(error)).strip()


@contextmanager
def resumable(output: Path) -> Iterator[None]:
    """If the user or the system stops a study, exit with code 130 and say how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"stopped; run the same command to continue in {shlex.quote(str(output))}", err=True)
        raise typer.Exit(130) from None


def note_shipped(recipe: str | Path) -> None:
    """Say so where a recipe that is not here is taken from the package."""
    from turnwise.recipe.layers import shipped

    if (ours := shipped(Path(recipe))) is not None:
        typer.echo(f"note: there is no {recipe} here; this is the one that comes with turnwise: {ours}", err=True)


def parse_settings(settings: list[str] | None) -> dict[str, Any]:
    """Parse `["hops=2", "sampling.size=4", "sampling=group"]`: values are YAML, dots nest, in any order."""
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
        return key, parse_shallow(_parse_value, value)
    except yaml.YAMLError:
        return key, value
    except ValueError as error:
        raise ValueError(f"cannot read the value of {key}: {error}") from None


def _parse_value(value: str) -> Any:
    try:
        return json.loads(value)  # first, because YAML reads 1e-5 as text
    except json.JSONDecodeError:
        return yaml.safe_load(value)


def _merge(first: Any, second: Any) -> Any:
    """Both settings of one key; next to options a bare value is the `kind`: `group` and `{size: 4}` combine."""
    if not isinstance(first, dict) and not isinstance(second, dict):
        return second
    merged = _as_options(first)
    for key, value in _as_options(second).items():
        merged[key] = _merge(merged[key], value) if key in merged else value
    return merged


def _as_options(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {"kind": value}  # pyright: ignore[reportUnknownArgumentType]


def console() -> Console:
    """Standard output, as wide as the terminal."""
    # In a file or a pipe a row stays on its line, unless the user sets a width.
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 200)


def bare_table(*columns: str | Column) -> Table:
    """A table without lines; on a narrow screen it wraps cells and hides nothing."""
    table = Table(*columns, box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    return table


def findings_table(findings: Iterable[Finding]) -> Table:
    """The findings of any check."""
    table = bare_table("check", "verdict", "finding")
    for finding in findings:
        verdict = Text(finding.verdict, VERDICT_COLOURS[finding.verdict])
        table.add_row(Text(finding.check), verdict, Text(printable(finding.text)))
    return table
