"""The command that writes reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from turnwise.cli.common import one_message
from turnwise.untrusted import parse_shallow


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, such as runs/my-run.")],
    output: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    comparison: Annotated[
        Path | None, typer.Option(help="A comparison.json of these runs, shown as a separate chapter.")
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="Recorded steps whose episodes are shown.")] = 3,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each of these steps.")] = 6,
) -> None:
    """Write one HTML file about one or more runs: curves, stability by turn, incidents, settings, episodes."""
    from turnwise.report import Sample, write_report

    with one_message():
        content = None if comparison is None else _read_comparison(comparison)
        written = write_report(runs, output, comparison=content, sample=Sample(steps=steps, episodes=episodes))
    typer.echo(f"{written} ({written.stat().st_size / 1e6:.1f} MB); open it in a browser")


def _read_comparison(file: Path) -> dict[str, Any]:
    try:
        content = parse_shallow(json.loads, file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {file}: {error}; name the comparison.json of `turnwise compare`") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} does not contain a comparison; name the comparison.json of `turnwise compare`")
    return content
