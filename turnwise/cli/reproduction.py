"""The command that tests a paper's claim."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from turnwise.cli.common import bare_table, console, one_message, parse_settings, resumable
from turnwise.cli.watching import Watch, watched
from turnwise.words import counted

if TYPE_CHECKING:
    from turnwise.reproduce.verdict import Judgement

_COLOURS = {"pass": "green", "fail": "bold red", "not decided": "yellow"}


def reproduce(
    paper: Annotated[
        str, typer.Argument(help="A folder of recipes/ with a claim.yaml, such as st-ppo, or a path; none: list them.")
    ] = "",
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Use your own task: --scale gpu env=search/geo-1hop"),
    ] = None,
    scale: Annotated[str, typer.Option(help="One of the claim's scales, such as cpu or gpu.")] = "cpu",
    quick: Annotated[
        bool, typer.Option("--quick", help="Few seeds and rates: a first look, not a verdict to cite.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at once; by default one per core, or one on a GPU.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Start no new run after this many minutes; call again for the rest.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of the study; by default runs/PAPER-SCALE.")] = None,
    verdict: Annotated[bool, typer.Option("--verdict", help="Run nothing; conclude from the existing runs.")] = False,
    watch: Watch = False,
) -> None:
    """Run the study of a paper's claim and say whether it holds. Call it again to continue."""
    with one_message():
        if not paper:
            _list_papers()
            return
        from turnwise.reproduce.claim import load_claim
        from turnwise.reproduce.claim_study import RESULTS, Study
        from turnwise.reproduce.conclusion import VERDICT
        from turnwise.reproduce.table_claim import load_table_claim
        from turnwise.reproduce.table_study import TableStudy

        tables = load_table_claim(paper)
        claim = tables or load_claim(paper)
        name = f"{scale}-quick" if quick else scale
        if quick and name not in claim.scales:
            raise ValueError(f"scale {scale} of {paper} has no quick version; omit --quick, or use --scale cpu")
        folder = output or Path("runs") / f"{Path(paper).name}-{name}"
        own = parse_settings(settings)
        study = Study(load_claim(paper), name, folder, own) if tables is None else TableStudy(tables, name, folder, own)
        if verdict and not (folder / "runs").is_dir():
            raise ValueError(f"there are no runs in {folder} to conclude from; omit --verdict to make them")
        faults: dict[str, str] = {}
        with watched(folder, watch and not verdict):  # a verdict takes only a moment
            if not verdict:
                typer.echo(f"{counted(len(study.runs), 'run')} in {folder}")
                at_once = jobs or (len(os.sched_getaffinity(0)) if study.device == "cpu" else 1)
                with resumable(folder):
                    faults = study.run(jobs=at_once, report=typer.echo, minutes=minutes)
            rows = study.write_results()
            findings = study.conclude(rows)
    for run, fault in faults.items():
        typer.echo(f"failed: {run}: {fault}", err=True)
    console().print(_table(findings))
    typer.echo(f"{len(rows)} of {len(study.runs)} runs are complete; {RESULTS} and {VERDICT} are in {folder}")
    if quick:
        typer.echo("This is a first look on few seeds; do not cite it.")
    raise typer.Exit(1 if faults else 0)


def _list_papers() -> None:
    """Every paper with its claim in a few words, and how many runs each scale takes."""
    from turnwise.reproduce.claim import load_claim, shipped_claims
    from turnwise.reproduce.plan import study_runs
    from turnwise.reproduce.table_claim import TableClaim, load_table_claim
    from turnwise.reproduce.table_study import table_runs

    width = max(map(len, shipped_claims())) + 2
    for name in shipped_claims():
        claim = load_table_claim(name) or load_claim(name)
        if isinstance(claim, TableClaim):
            runs = {scale: len(table_runs(claim, each)) for scale, each in claim.scales.items()}
        else:
            runs = {scale: len(study_runs(each)) for scale, each in claim.scales.items()}
        typer.echo(f"{name:<{width}}{claim.short}")
        scales = ", ".join(f"{scale} {count}" for scale, count in runs.items())
        typer.echo(f"{'':<{width}}{claim.paper}; runs by scale: {scales}")
    typer.echo("These are the papers' claims; what we found, with seeds, is in docs/claims.md.")
    typer.echo("A first look with few runs: turnwise reproduce NAME --quick")


def _table(findings: list[Judgement]) -> Table:
    table = bare_table("criterion", "verdict", "numbers")
    for finding in findings:
        table.add_row(finding.name, Text(finding.outcome, _COLOURS[finding.outcome]), finding.text)
    return table
