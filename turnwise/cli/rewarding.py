"""The command that trains a reward model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from turnwise.cli.common import console, one_message, parse_settings

if TYPE_CHECKING:
    from turnwise.reward_models.pair_report import PairReport, Share


def reward_model(
    pairs: Annotated[Path, typer.Argument(metavar="PAIRS.jsonl", help="A file of preferences.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="epochs=2 batch=32 train.learning_rate=1e-5 model.lora.rank=8"),
    ] = None,
    model: Annotated[str, typer.Option(help="nano, smollm2-135m, a model folder or a model name.")] = "nano",
    output: Annotated[Path, typer.Option(help="A new folder for the model and its report.")] = Path(
        "runs/reward-model"
    ),
    loss: Annotated[str, typer.Option(help="bradley-terry (comparisons) or regression (scores).")] = "bradley-terry",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Train a reward model on preferences, and report how good it is on held-out prompts."""
    from turnwise.reward_models import RewardTraining, train_reward_model

    try:
        with one_message():
            given = {"model.name": model, "loss": loss}
            chosen = parse_settings([*(f"{key}={json.dumps(value)}" for key, value in given.items()), *(changes or [])])
            note = lambda text: typer.echo(text, err=as_json)  # noqa: E731
            report = train_reward_model(pairs, output, RewardTraining.of(chosen), note=note)
    except KeyboardInterrupt:
        typer.echo("turnwise: stopped; nothing was written", err=True)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(report.as_row()))
        return
    for table in _tables(report):
        console().print(table)
    typer.echo(f"the model and report.json are in {output}")


def _tables(report: PairReport) -> tuple[Table, Table]:
    shares = Table("held-out pairs", "pairs", "accuracy", "95% interval", title="accuracy")
    rows = {"all": report.all, "longer chosen": report.longer_chosen, "longer rejected": report.longer_rejected}
    for name, share in {**rows, **report.by_source}.items():
        shares.add_row(name, str(share.pairs), *_cells(share))
    bias = "–" if report.length_correlation is None else f"{report.length_correlation:+.3f}"
    shares.caption = f"margin {report.margin:.3f}, loss {report.loss:.4f}, correlation with length {bias}"
    sure = Table("confidence", "pairs", "mean", "right", title=f"calibration: error {report.calibration_error:.3f}")
    for row in report.reliability:
        sure.add_row(
            f"{row.above:.1f} to {row.below:.1f}", str(row.pairs), f"{row.confidence:.3f}", f"{row.accuracy:.3f}"
        )
    return shares, sure


def _cells(share: Share) -> tuple[str, str]:
    if share.accuracy is None:
        return "–", ""
    return f"{share.accuracy:.3f}", f"{share.low:.3f} to {share.high:.3f}"
