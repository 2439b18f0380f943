"""What the commands share: reading settings, one message per mistake, findings as a table."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from turnwise.untrusted import parse_shallow, printable

if TYPE_CHECKING:
    from turnwise.envs.check import Finding

Trust = Annotated[
    bool, typer.Option("--trust", help="Run code named by a run folder from elsewhere; see docs/trust.md.")
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
def resumable(output: Path) -> Iterator[None]:
    """If the user or the system stops a study, exit with code 130 and say how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"stopped; run the same command to continue in {shlex.quote(str(output))}", err=True)
        raise typer.Exit(130) from None


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
