"""Commands that inspect without training: does this machine work, and does a run match its records?"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column
from rich.text import Text

from turnwise.cli.common import VERDICT_COLOURS, Trust, bare_table, console, findings_table, one_message
from turnwise.trust import trusting
from turnwise.untrusted import printable
from turnwise.words import counted

if TYPE_CHECKING:
    from turnwise.audit.replay import Replayed
    from turnwise.audit.replay_episode import ReplayedEpisode
    from turnwise.audit.verify import StepCheck

Run = Annotated[Path, typer.Argument(help="A run folder; the imitation stage of `train` is in RUN/sft.")]
_SHOWN = 72
"""Characters of an action in a table."""


def doctor(
    runs: Annotated[Path, typer.Option(help="Where run folders will be.")] = Path("runs"),
) -> None:
    """Check this machine: devices, versions, sandbox, what works; exit code 1 if something needs fixing."""
    from turnwise.doctor import examine

    with console().status("checking this machine"):
        findings = list(examine(runs))
    defects = [finding for finding in findings if finding.verdict == "defect"]
    console().print(findings_table(findings))
    typer.echo(f"{len(defects)} to fix: {', '.join(each.check for each in defects)}" if defects else "fit to train")
    raise typer.Exit(1 if defects else 0)


def verify(
    run: Run,
    steps: Annotated[str | None, typer.Option(help="Only these steps, such as 3,7.")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Only the last N recorded steps.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    trust: Trust = False,
) -> None:
    """Check a run's saved trajectories: prefixes, masks, staleness, log-probs; exit code 1 if there are defects."""
    with one_message(), trusting(trust):
        chosen = _parse_steps(steps)
        if chosen and last is not None:
            raise ValueError("--steps and --last exclude each other; give only one")
        from turnwise.audit.verify import verify_run

        with console().status("loading"):
            remaining = verify_run(run, steps=chosen, last=last)
        with console().status("checking"):
            checks = list(remaining)
    if as_json:
        typer.echo(json.dumps([check.as_row() for check in checks]))
    else:
        _show_checks(checks)
    raise typer.Exit(0 if all(check.ok for check in checks) else 1)


def replay(
    run: Run,
    step: Annotated[int, typer.Option(min=1, help="Which recorded step.")],
    episode: Annotated[
        str | None, typer.Option(metavar="ID", help="Play this episode of the step again, such as step-3/task-7/0.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Repeat a recorded step and compare its numbers, or replay an episode; exit code 1 if they differ."""
    with one_message(), trusting(trust):
        if episode is not None:
            from turnwise.audit.replay_episode import replay_episode

            outcome = replay_episode(run, step, episode)
            _show_episode(outcome)
        else:
            from turnwise.audit.replay import replay_step

            with console().status("loading") as status:
                outcome = replay_step(run, step, note=status.update)
            _show_step(outcome)
    console().print(Text(printable(outcome.conclusion), "green" if outcome.same else "bold red"))
    raise typer.Exit(0 if outcome.same else 1)


def _parse_steps(steps: str | None) -> list[int]:
    if steps is None:
        return []
    try:
        return [int(step) for step in steps.split(",")]
    except ValueError:
        raise ValueError(f"cannot read --steps {steps!r}; give numbers with commas, such as 3,7") from None


def _show_checks(checks: Sequence[StepCheck]) -> None:
    from turnwise.audit.verify import CHECKS

    table = bare_table(*(Column(name, justify="right") for name in ("step", "episodes", "sampled")), *CHECKS)
    table.padding = (0, 1, 0, 0)  # so that it fits on 60 columns
    for check in checks:
        verdicts = {finding.check: finding.verdict for finding in check.findings}
        shown = {name: Text(verdict, VERDICT_COLOURS[verdict]) for name, verdict in verdicts.items()}
        if check.gap is not None:
            shown["gap"].append(f" {check.gap.worst:.1e}")
        numbers = map(str, (check.step, check.episodes, check.tokens))
        table.add_row(*numbers, *(shown.get(name, Text("")) for name in CHECKS))
    console().print(table)
    _show_remarks(checks)
    learned, read = sum(check.tokens for check in checks), sum(check.context for check in checks)
    console().print(f"{learned:,} of {learned + read:,} tokens are the policy's to learn; the others are context")
    bad = sum(not check.ok for check in checks)
    many = f"{counted(len(checks), 'step')} checked"
    console().print(
        Text(f"{many}: {bad} with defects" if bad else f"{many}: no defect", "bold red" if bad else "green")
    )


def _show_remarks(checks: Sequence[StepCheck]) -> None:
    """Each defect and note once, with the steps that have it."""
    from turnwise.audit.recorded import spans

    steps: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for check in checks:
        for finding in check.findings:
            if finding.verdict != "pass":
                steps[finding.verdict, finding.check, finding.text].append(check.step)
    for (verdict, name, text), where in steps.items():
        console().print(Text(f"{verdict}, step {spans(where)}, {name}: {printable(text)}", VERDICT_COLOURS[verdict]))


def _show_step(outcome: Replayed) -> None:
    numbers = [Column(name, justify="right") for name in ("recorded", "replayed")]
    table = bare_table("metric", *numbers, "")
    for number in outcome.numbers:
        verdict = Text("equal", "green") if number.same else Text(f"differs by {number.difference:.2g}", "bold red")
        table.add_row(number.name, _exactly(number.recorded), _exactly(number.replayed), verdict)
    console().print(table)
    if not outcome.same:
        for circumstance in outcome.circumstances:
            console().print(Text(f"note: {circumstance}", "yellow"))


def _exactly(number: float | None) -> str:
    return "none" if number is None else repr(number)


def _show_episode(outcome: ReplayedEpisode) -> None:
    seats = len({moment.seat for moment in outcome.moments}) > 1
    table = bare_table("turn", "action", "observation", "reward")
    for moment in outcome.moments:
        place = f"{moment.seat}, {moment.place}" if seats else moment.place
        action = " ".join(printable(moment.action).split())
        shown = action if len(action) <= _SHOWN else f"{action[: _SHOWN - 1]}…"
        table.add_row(Text(place), Text(shown), _same(moment.same_observation), _same(moment.same_outcome))
    console().print(table)
    for moment in outcome.moments:
        if not (moment.same_observation and moment.same_outcome):
            console().print(Text(f"{moment.seat}, {moment.place}, recorded: {printable(repr(moment.recorded))}"))
            console().print(Text(f"{moment.seat}, {moment.place}, replayed: {printable(repr(moment.replayed))}"))
            break  # what comes after the first difference follows from it


def _same(same: bool) -> Text:
    return Text("same", "green") if same else Text("differs", "bold red")
