"""Commands that look without training: is this machine fit?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnwise.cli.common import console, findings_table


def doctor(
    runs: Annotated[Path, typer.Option(help="Where run folders will lie.")] = Path("runs"),
) -> None:
    """Examine this machine: devices, versions, sandbox, what works; exit code 1 when something must be repaired."""
    from turnwise.doctor import examine

    with console().status("examining this machine"):
        findings = list(examine(runs))
    defects = [finding for finding in findings if finding.verdict == "defect"]
    console().print(findings_table(findings))
    typer.echo(f"{len(defects)} to repair: {', '.join(each.check for each in defects)}" if defects else "fit to train")
    raise typer.Exit(1 if defects else 0)
