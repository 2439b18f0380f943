"""The command that compares algorithms."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnwise.cli.common import Trust, console, note_shipped, one_message, parse_settings, resumable
from turnwise.cli.watching import Watch, watched
from turnwise.trust import trusting
from turnwise.words import counted

if TYPE_CHECKING:
    from turnwise.recipe.schema import Recipe
    from turnwise.study.arms import Arm, StudyOutcome


def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="ALGORITHM... [KEY=VALUE]...",
            help="Presets or YAML files; the others are compared with the first. Settings for one only follow a colon: "
            "ppo:train.learning_rate=1e-4,algorithm.epochs=2. Changes for all: train.steps=50",
        ),
    ],
    recipe: Annotated[Path | None, typer.Option(help="A recipe to start from.")] = None,
    env: Annotated[str | None, typer.Option(help="Where to play; by default where the recipe says.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each algorithm, on seeds 0, 1, 2, ...")] = 5,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at once; by default what the machine allows.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for the runs and the comparison.")] = Path("runs/compare"),
    trust: Trust = False,
    watch: Watch = False,
) -> None:
    """Train several algorithms on equal seeds, tasks and data, and compare them. Call it again to continue."""
    with one_message(), trusting(trust):
        from turnwise.study.arms import plan_arms, run_arms

        common = [word for word in words if _is_setting(word)] + ([f"env={env}"] if env else [])
        named = [word for word in words if not _is_setting(word)]
        _refuse_runs(named)
        arms = [_arm(word, common) for word in named]
        if not arms:
            raise ValueError("name the algorithms to compare, such as: turnwise compare ppo st-ppo")
        if recipe is not None:
            note_shipped(recipe)
        planned = plan_arms(recipe, arms, seeds=seeds, output=output)
        at_once = jobs or _fitting_jobs(planned[0].recipe)
        plan = f"{counted(len(arms), 'algorithm')} x {counted(seeds, 'seed')}, {counted(at_once, 'run')} at once"
        typer.echo(f"{plan}, in {output}")
        with watched(output, watch):
            with resumable(output):
                outcome = run_arms(planned, output=output, jobs=at_once, report=typer.echo)
            _conclude(outcome, output)
    raise typer.Exit(1 if outcome.failed else 0)


def _refuse_runs(named: list[str]) -> None:
    from turnwise.runs.settings import META

    if runs := [word for word in named if (Path(word) / META).is_file()]:
        raise ValueError(
            f"{runs[0]} is a run, and compare trains algorithms; see runs side by side with `turnwise report "
            f"{' '.join(runs)}`"
        )


def _is_setting(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(equals) and ":" not in key


def _arm(word: str, common: list[str]) -> Arm:
    """Parse `ppo:algorithm.epochs=2,train.learning_rate=1e-4`; its own settings override those for all."""
    from turnwise.study.arms import Arm

    algorithm, colon, own = word.partition(":")
    settings = [f"algorithm={algorithm}", *common, *(own.split(",") if colon else [])]
    label = word.removeprefix(algorithm)
    return Arm(label=Path(algorithm).stem + label, overrides=parse_settings(settings))


def _fitting_jobs(recipe: Recipe) -> int:
    """As many runs as cores and memory allow; one at a time on a GPU."""
    from turnwise.train.estimate import estimate

    needed = estimate(recipe)
    if needed.device != "cpu":
        return 1
    return max(1, min(len(os.sched_getaffinity(0)), needed.memory_there // needed.memory_needed))


def _conclude(outcome: StudyOutcome, output: Path) -> None:
    from turnwise.evaluate.comparison import compare_folders
    from turnwise.evaluate.tables import comparison_tables
    from turnwise.report import write_report

    for name, fault in outcome.failed.items():
        typer.echo(f"failed: {name}: {fault}", err=True)
    folders = {label: complete for label, complete in outcome.folders.items() if complete}
    comparison = compare_folders(folders)
    comparison.save(output / "comparison.json")
    runs = [folder for complete in folders.values() for folder in complete]
    write_report(runs, output / "comparison.html", comparison=comparison.as_dict())
    console().print(comparison_tables(comparison))
    typer.echo(f"wrote {output / 'comparison.json'} and {output / 'comparison.html'}")
