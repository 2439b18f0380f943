"""Commands that write reports and compare saved evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from turnwise.cli.common import bare_table, console, one_message
from turnwise.untrusted import parse_shallow, printable


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, such as runs/my-run.")],
    output: Annotated[
        Path | None,
        typer.Option(help="The HTML file to write; by default RUN/report.html, of several runs report.html."),
    ] = None,
    comparison: Annotated[
        Path | None, typer.Option(help="A comparison.json of these runs, shown as a separate chapter.")
    ] = None,
    evals: Annotated[
        list[Path] | None,
        typer.Option(
            "--eval", help="Files of `turnwise eval --save`, compared with the first; those in RUN/evals join."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="Recorded steps whose episodes are shown.")] = 3,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each of these steps.")] = 6,
) -> None:
    """Write one HTML file about one or more runs: curves, stability by turn, incidents, settings, episodes."""
    from turnwise.report import Sample, write_report

    with one_message():
        if files := [run for run in runs if run.is_file()]:
            raise ValueError(
                f"{files[0]} is a file, and a report is about run folders; add saved evaluations to one with --eval "
                f"(turnwise report RUN --eval {files[0]}), or compare them with `turnwise compare-evals FILE FILE`"
            )
        content = None if comparison is None else _read_comparison(comparison)
        found = [*(evals or []), *(file for run in runs for file in sorted((run / "evals").glob("*.json")))]
        saved = _read_evaluations(found) if found else None
        sample = Sample(steps=steps, episodes=episodes)
        place = output or (runs[0] if len(runs) == 1 else Path()) / "report.html"
        written = write_report(runs, place, comparison=content, evaluations=saved, sample=sample)
    typer.echo(f"{written} ({written.stat().st_size / 1e6:.1f} MB); open it in a browser")


def compare_evaluations(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of `turnwise eval --save`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print tables and notes as JSON.")] = False,
) -> None:
    """Compare saved evaluations with the first one: side by side, and the differences on equal tasks."""
    with one_message():
        if repeated := [file for place, file in enumerate(files) if file.resolve() in map(Path.resolve, files[:place])]:
            raise ValueError(f"{repeated[0]} is named twice, and differs from itself in nothing; name two files")
        chapter = _read_evaluations(files)
    if as_json:
        typer.echo(json.dumps(chapter))
        return
    for item in chapter["tables"]:
        table = bare_table(*item["columns"])
        for row in item["rows"]:
            table.add_row(*(Text(printable(str(cell))) for cell in row))
        console().print(Text(printable(item["title"]), "bold"), table, "")
    for note in chapter["notes"]:
        console().print(Text(f"note: {printable(note)}", "yellow"))


def _read_evaluations(files: list[Path]) -> dict[str, Any]:
    from turnwise.evaluate.saved_chapter import evaluations_chapter, read_evaluations

    return evaluations_chapter(read_evaluations(files))


def _read_comparison(file: Path) -> dict[str, Any]:
    from turnwise.report.comparison_chapter import comparison_chapter

    fix = "name the comparison.json of `turnwise compare`"
    try:
        content = parse_shallow(json.loads, file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {file}: {error}; {fix}") from error
    try:
        comparison_chapter(content)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} does not contain a comparison ({error}); {fix}") from error
    return content
