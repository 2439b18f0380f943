"""The screen of a run: a live table on a terminal, plain lines in a log, little under continuous integration."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from turnwise.console import views
from turnwise.console.chart import draw_curve
from turnwise.console.progress import RunProgress, step_of
from turnwise.console.samples import episode_text
from turnwise.guard.guard import Incident
from turnwise.recipe.schema import Recipe
from turnwise.recipe.seating import trained_policies
from turnwise.runs.journal import read_journal
from turnwise.runs.rows import Row, row_of
from turnwise.types import Trajectory
from turnwise.untrusted import printable
from turnwise.words import counted

Form = Literal["live", "plain", "quiet"]

_REDRAWS = 4
"""Per second: enough for a moving clock, with no load on the training."""


def choose_form(environment: Mapping[str, str] = os.environ) -> Form:
    """Quiet under CI, live on a terminal, plain lines everywhere else."""
    if environment.get("CI", "").lower() not in ("", "0", "false"):
        return "quiet"
    return "live" if sys.stdout.isatty() and environment.get("TERM") != "dumb" else "plain"


class RunConsole:
    """What the loop shows its user: `with RunConsole(form="plain", out=Console()) as console: ...`.

    Quiet prints what the guard saw and how the run ended, in a few lines; plain prints how it starts, goes and ends.
    """

    def __init__(self, *, form: Form, out: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.form, self._out, self._clock = form, out, clock
        self._recipe: Recipe | None = None
        self._folder = Path()
        self._policies = {"": RunProgress(steps=0)}
        """How far each policy has come, by name; one that learns alone needs none."""
        self._phase, self._guard = "starting", ""
        self._spinner, self._live = Spinner("dots"), None
        self._printed = set[str]()
        """Notes and episodes that were already printed."""

    def __enter__(self) -> RunConsole:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop_live()

    def started(self, recipe: Recipe, folder: Path, warnings: Sequence[str] = (), *, done: int = 0) -> None:
        """A run starts, or continues after `done` steps; recorded later steps are played again."""
        self._recipe, self._folder = recipe, folder
        self._guard = "off" if recipe.guard.mode == "off" and not recipe.guard.signals else "healthy"
        rows, evaluations = (
            [row for row in read_journal(folder / name) if step_of(row) <= done]
            for name in ("metrics.jsonl", "evals.jsonl")
        )
        trained = trained_policies(recipe)
        self._policies = {
            policy: RunProgress(
                steps=recipe.train.steps,
                stage=recipe.stage,
                imitated=recipe.sft is not None,
                rows=[row_of(row, policy) if policy else row for row in rows],
                evaluations=[row_of(row, policy) if policy else row for row in evaluations],
                clock=self._clock,
            )
            for policy in (trained if len(trained) > 1 else [""])
        }
        if self.form != "quiet":
            self._print(views.title(recipe))
            after = f" · continues after step {self._progress.step}" if rows else ""
            self._print(Text(f"run folder {printable(str(folder))} · seed {recipe.seed}{after}"))
            for warning in warnings:
                self._say_once(Text(f"note: {printable(warning)}", "yellow"))
        self._start_live()

    def phase(self, name: str) -> None:
        """What the run is doing now."""
        self._phase = name
        self._redraw()

    def step(self, row: Row, *, guard: str = "") -> None:
        """A step is done; `guard` is the guard's state in a word or two."""
        self._guard = guard or self._guard
        for policy, progress in self._policies.items():
            progress.add(row_of(row, policy) if policy else row)
            if self.form == "plain":
                self._print(views.step_line(progress, self._guard, width=self._width, policy=policy))
        self._redraw()

    def evaluated(self, row: Row) -> None:
        """Held-out tasks were played."""
        for policy, progress in self._policies.items():
            own = row_of(row, policy) if policy else row
            progress.add_evaluation(own)
            if self.form != "quiet":
                self._print(views.evaluation_line(own, policy=policy))

    def incident(self, incident: Incident, *, policy: str = "") -> None:
        """The guard saw something; `policy` says whose guard where several learn."""
        self._guard = f"saw {incident.signal}"
        self._print(views.incident_line(incident, policy=policy))

    def note(self, text: str) -> None:
        """Anything else worth a line."""
        if self.form != "quiet":
            self._print(Text(printable(text)))

    def sample(self, title: str, trajectory: Trajectory) -> None:
        """An episode to read, turn by turn; one that was shown before is only named."""
        if self.form == "quiet":
            return
        episode = episode_text(trajectory)
        if episode.plain in self._printed:
            self._print(Text(f"{printable(title)}: played as above", "bold"))
            return
        self._print(Text(printable(title), "bold"))
        self._say_once(episode)

    def finished(self, summary: Mapping[str, Any]) -> None:
        """The run is over: its curve, before and after, and what to do next.

        `summary["status"]` is finished, interrupted (Ctrl-C) or stopped (by the guard).
        """
        self._stop_live()
        assert self._recipe is not None, "started comes first"
        briefly = self.form == "quiet"
        if not briefly:
            for policy, progress in self._policies.items():
                self._show_course(policy, progress)
        self._print(self._ending(str(summary["status"])))
        for policy, progress in self._policies.items():
            if briefly and progress.evaluations:
                self._print(views.outcome_line(progress.evaluations, policy=policy))
        self._print(views.next_steps(self._recipe, self._folder, self._progress, briefly=briefly), whole=True)

    @property
    def _progress(self) -> RunProgress:
        """That of the first policy: all take the same steps and play the same episodes."""
        return next(iter(self._policies.values()))

    def _show_course(self, policy: str, progress: RunProgress) -> None:
        """The curve, and the first evaluation next to the last."""
        if curve := draw_curve(progress.success, width=self._out.width):
            self._print(Text("\n".join(["", views.named("success", policy), *curve]), "green"))
        if progress.evaluations:
            ends = zip(("before", "after"), (progress.evaluations[0], *progress.evaluations[1:][-1:]), strict=False)
            self._print("")
            self._print(views.evaluation_table({f"{when} (step {step_of(row)})": row for when, row in ends}))
        self._print("")

    def _ending(self, status: str) -> Text:
        words = {
            "finished": f"Finished {counted(self._progress.step, 'step')}.",
            "interrupted": f"Interrupted: step {self._progress.step} is finished and saved.",
            "stopped": f"The guard stopped the run at step {self._progress.step}; events.jsonl has the evidence.",
        }
        text = Text(words[status], "bold")
        if lost := self._progress.lost:
            were = "was" if lost == 1 else "were"
            text.append(f" {counted(lost, 'episode')} {were} lost to faults and entered no batch.", "yellow")
        if barren := self._progress.barren:
            text.append(f"\n{barren}", "yellow")
        return text

    @property
    def _width(self) -> int | None:
        """Columns of the screen; None in a log, which has no width unless the user sets one."""
        return self._out.width if self._out.is_terminal or "COLUMNS" in os.environ else None

    def _print(self, content: RenderableType, *, whole: bool = False) -> None:
        # Logs keep lines whole, and so do commands, which are copied from the screen; other text wraps at words.
        self._out.print(content, soft_wrap=isinstance(content, Text) and (whole or self._width is None))

    def _say_once(self, text: Text) -> None:
        if text.plain not in self._printed:
            self._printed.add(text.plain)
            self._print(text)

    def _start_live(self) -> None:
        if self.form == "live" and self._live is None:
            self._live = Live(console=self._out, refresh_per_second=_REDRAWS)
            self._live.start()
            self._redraw()

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.update(self._table())  # the spinner has stopped
            self._live.stop()
            self._live = None

    def _redraw(self) -> None:
        """Build the view if something has changed; between changes only the spinner moves."""
        if self._live is not None:
            self._spinner.update(text=views.status_line(self._progress, self._phase, self._guard))
            self._live.update(Group(self._table(), self._spinner), refresh=True)

    def _table(self) -> RenderableType:
        tables = [
            views.step_table(progress, width=self._out.width, policy=policy)
            for policy, progress in self._policies.items()
            if progress.rows
        ]
        return Group(*tables)
