"""How the numbers of a run look: a table, a line, an evaluation, an end. Everything is `Text`: no markup is parsed."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from rich.table import Column, Table
from rich.text import Text

from turnwise.algorithm import PRESETS
from turnwise.console.progress import RunProgress, lost_in, step_of
from turnwise.guard.guard import Incident
from turnwise.recipe.schema import Recipe
from turnwise.runs.rows import Row, number
from turnwise.untrusted import printable
from turnwise.words import counted, written

_PART = "rollout/reward_"
"""The beginning of the metric of a named part of the reward."""
SHOWN = 8
"""Steps in the live table."""
_TEXT_MEASURES = ("eval/nll", "eval/text_perplexity", "eval/kl", "eval/meteor", "eval/length", "eval/perplexity")
"""Of `eval.measures`, those that an evaluation shows."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number of a step on the screen."""

    label: str
    metric: str
    form: str
    width: int = 5
    if_any: bool = False
    """Shown only if some step has more than none of it."""

    def is_known(self, rows: Sequence[Row]) -> bool:
        """Whether these steps have something to show."""
        return any(number(row, self.metric) if self.if_any else self.metric in row for row in rows)

    def cell(self, row: Row) -> str:
        """The number as text; a dash if the row has none."""
        value = number(row, self.metric)
        return "–" if value is None else format(value, self.form)


PLAYED = (
    Measure(label="success", metric="rollout/success", form="z.3f"),
    Measure(label="cut", metric="rollout/cut", form="z.3f", if_any=True),
    Measure(label="reward", metric="rollout/reward", form="z.3f", width=6),
    Measure(label="turns", metric="rollout/turns", form=".2f"),
    Measure(label="clip", metric="loss/clip_fraction", form="z.3f"),
    Measure(label="KL", metric="loss/sampler_kl", form="z.4f", width=6),
    Measure(label="KL ref", metric="loss/reference_kl", form="z.4f", width=6),
    Measure(label="entropy", metric="loss/entropy", form="z.3f"),
    Measure(label="tokens/s", metric="time/tokens_per_second", form=",.0f", width=7),
    Measure(label="seconds", metric="time/step", form=".1f"),
)
"""For a step in which episodes were played."""

IMITATED = (
    Measure(label="loss", metric="loss/policy", form="z.4f", width=6),
    Measure(label="gradient", metric="train/gradient_norm", form="z.3f"),
    Measure(label="entropy", metric="loss/entropy", form="z.3f"),
    Measure(label="tokens/s", metric="time/tokens_per_second", form=",.0f", width=7),
    Measure(label="seconds", metric="time/step", form=".1f"),
)
"""For a step that learned from demonstrations: nothing was played."""

PREFERRED = (
    Measure(label="loss", metric="loss/policy", form="z.4f", width=6),
    Measure(label="accuracy", metric="pairs/accuracy", form="z.3f"),
    Measure(label="margin", metric="pairs/margin", form="z.3f", width=6),
    Measure(label="chosen", metric="pairs/chosen", form="z.2f", width=6),
    Measure(label="rejected", metric="pairs/rejected", form="z.2f", width=6),
    Measure(label="KL ref", metric="loss/reference_kl", form="z.4f", width=6),
    Measure(label="gradient", metric="train/gradient_norm", form="z.3f"),
    Measure(label="tokens/s", metric="time/tokens_per_second", form=",.0f", width=7),
    Measure(label="seconds", metric="time/step", form=".1f"),
)
"""For a step that learned from files of preferences."""


def measures_of(progress: RunProgress) -> list[Measure]:
    """The measures of this run so far: the same in every row, so that rows stay aligned."""
    measures = {"imitation": IMITATED, "preference": PREFERRED, "reinforcement": PLAYED}[progress.stage]
    known = [measure for measure in measures if measure.is_known(progress.rows)]
    parts = [
        Measure(label=printable(name.removeprefix(_PART)), metric=name, form="z.3f", width=6)
        for name in dict.fromkeys(name for row in progress.rows for name in row if name.startswith(_PART))
    ]
    after = next((place + 1 for place, measure in enumerate(known) if measure.metric == "rollout/reward"), None)
    return known if after is None else [*known[:after], *parts, *known[after:]]


def named(text: str, policy: str) -> str:
    """A line with the policy's name in front, where several learn."""
    return f"{printable(policy)}  {text}" if policy else text


def step_table(progress: RunProgress, *, width: int, policy: str = "") -> Table:
    """The last steps and the best one, with as many measures as the width allows."""
    rows, best = progress.rows[-SHOWN:], progress.best
    measures = measures_of(progress)
    widths = (max(len(measure.label), measure.width) + 1 for measure in measures)
    measures = measures[: _fitting(widths, width - len(f"best {progress.steps} faults"))]
    table = Table(
        "step",
        *(measure.label for measure in measures),
        "faults",
        title=Text(printable(policy), "bold") if policy else None,
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in table.columns:
        column.justify = "right"
    if best is not None and len(progress.rows) > 1:
        _add(table, measures, best, f"best {step_of(best)}", "green")
    for row in rows:
        _add(table, measures, row, str(step_of(row)), "bold" if row is rows[-1] else "")
    return table


def _fitting(widths: Iterable[int], room: float) -> int:
    """How many of these fit next to each other."""
    return sum(end <= room for end in accumulate(widths))


def _add(table: Table, measures: Sequence[Measure], row: Row, name: str, style: str) -> None:
    cells = [name, *(measure.cell(row) for measure in measures), str(lost_in(row))]
    table.add_row(*map(Text, cells), style=style)


def step_line(progress: RunProgress, guard: str, *, width: int | None = None, policy: str = "") -> Text:
    """The last step in one line, with a fixed place for every number; a narrow screen shows fewer."""
    row, digits = progress.rows[-1], len(str(progress.steps))
    first = named(f"step {progress.step:>{digits}}/{progress.steps}", policy)
    last = f"left {duration(progress.seconds_left):>7}  guard {printable(guard)}"
    parts = [f"{measure.label} {measure.cell(row):>{measure.width}}" for measure in measures_of(progress)]
    parts.append(f"faults {lost_in(row):>2}")
    room = math.inf if width is None else width - len(f"{first}  {last}")
    return Text("  ".join([first, *parts[: _fitting((len(part) + 2 for part in parts), room)], last]))


def status_line(progress: RunProgress, phase: str, guard: str) -> Text:
    """What happens now, below the table."""
    text = Text(f"{printable(phase)} · step {min(progress.step + 1, progress.steps)} of {progress.steps}")
    text.append(f" · {duration(progress.seconds_left)} left")
    if progress.lost:
        text.append(f" · {counted(progress.lost, 'episode')} lost to faults", "yellow")
    return text.append(" · guard ").append(printable(guard), "green" if guard in ("healthy", "off") else "yellow")


def title(recipe: Recipe) -> Text:
    """What is trained, where and how."""
    place, size = recipe.env.id, counted(recipe.rollout.episodes, "episode")
    if recipe.stage == "preference":
        place = ", ".join(Path(part.path or "").name for part in recipe.source.mix)
        size = counted(recipe.rollout.episodes, "answer")
    if recipe.sft is not None and recipe.stage == "imitation":
        size = counted(recipe.sft.batch, "demonstration")
        place = place if recipe.sft.chats is None else Path(recipe.sft.chats).name
    text = Text(printable(recipe.algorithm.name), "bold").append(f" on {printable(place)}", "bold")
    steps = counted(recipe.train.steps, "step")
    return text.append(f" · {printable(_models(recipe))} · {steps} of {size}")


def _models(recipe: Recipe) -> str:
    """The model, or whose it is where there are several."""
    policies = {name: choice.model.name for name, choice in recipe.policies.items()}
    frozen = [name for name, choice in recipe.policies.items() if choice.frozen]
    named = [f"{name} {model}{' (frozen)' if name in frozen else ''}" for name, model in policies.items()]
    return f"models {', '.join(named)}" if named else f"model {recipe.model.name}"


def incident_line(incident: Incident, *, policy: str = "") -> Text:
    """What the guard saw and did."""
    seen = f"step {incident.step}  {printable(incident.signal)}: {printable(incident.text)}"
    text = Text(f"guard  {named(seen, policy)}", "yellow")
    if incident.action != "none":
        done = f"{incident.action}, {incident.change}" if incident.change else incident.action
        text.append(f" → {printable(done)}", "bold red")
    return text


def evaluation_line(row: Row, *, policy: str = "") -> Text:
    """An evaluation in one line, with intervals."""
    parts = [f"{label} {_with_interval(row, metric)}" for label, metric in _measures([row])]
    played, tasks = number(row, "eval/episodes"), number(row, "eval/tasks")
    if played is not None:
        different = "" if tasks is None else f" of {counted(round(tasks), 'different task')}"
        parts.append(counted(round(played), "episode") + different)
    return Text(named(f"held-out at step {step_of(row)}: {', '.join(parts)}", policy), "cyan")


def evaluation_table(evaluations: Mapping[str, Row]) -> Table:
    """Evaluations side by side, each under its own heading."""
    rows = list(evaluations.values())
    headings = [Column(header=Text(printable(heading))) for heading in evaluations]
    table = Table("held-out", *headings, box=None, pad_edge=False)
    for label, metric in [*_measures(rows), *_scores(rows)]:
        table.add_row(Text(printable(label)), *(Text(_with_interval(row, metric)) for row in rows))
    if any("eval/episodes" in row for row in rows):
        table.add_row("episodes", *(f"{row.get('eval/episodes') or 0:.0f}" for row in rows))
    if any("eval/tasks" in row for row in rows):
        table.add_row("tasks", *(f"{row.get('eval/tasks') or 0:.0f}" for row in rows))
    return table


def _measures(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Label and metric of what was measured; pass@1 is success itself, and no cuts or no faults are not shown."""
    passes = [name for row in rows for name in row if name.startswith("eval/pass@") and name != "eval/pass@1"]
    pairs = sorted({name for row in rows for name in row if name.startswith("eval/pairs_")})
    ends = ("eval/reward_low", "eval/reward_high")
    parts = dict.fromkeys(name for row in rows for name in row if name.startswith("eval/reward_") and name not in ends)
    names = ["eval/success", "eval/reward", *parts, "eval/win_rate", "eval/turns", "eval/valid"]
    names += dict.fromkeys(passes)
    names += ["eval/exploitability", "eval/left_over", "eval/distinct_solutions", *pairs, *_TEXT_MEASURES]
    known = [name for name in names if any(number(row, name) is not None for row in rows)]
    known += [name for name in ("eval/cut", "eval/faults") if any(number(row, name) for row in rows)]
    return [(name.removeprefix("eval/").replace("_", " "), name) for name in known]


def _scores(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """The environment's own scores; a line has no room for them. A part of the reward may have the same name."""
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("eval/score_"))
    return [(f"score {name.removeprefix('eval/score_')}", name) for name in names]


def _with_interval(row: Row, metric: str) -> str:
    value, low, high = (number(row, metric + end) for end in ("", "_low", "_high"))
    if value is None:
        return "–"
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def outcome_line(evaluations: Sequence[Row], *, policy: str = "") -> Text:
    """Held-out success in one line, or else accuracy on pairs or loss: before, and now with its interval."""
    before, now = evaluations[0], evaluations[-1]
    metric, name = "eval/success", "success"
    others = {"eval/pairs_accuracy": "accuracy on pairs", "eval/nll": "loss per token"}
    if number(now, metric) is None and (known := [each for each in others if number(now, each) is not None]):
        metric, name = known[0], others[known[0]]
    earlier = f", {_with_interval(before, metric)} before" if before is not now else ""
    said = f"held-out {name} {_with_interval(now, metric)} at step {step_of(now)}{earlier}"
    return Text(named(said, policy))


def next_steps(recipe: Recipe, folder: Path, progress: RunProgress, *, briefly: bool = False) -> Text:
    """Commands to continue with; in brief form only the run's folder and how to resume an unfinished run."""
    # The imitation stage is inside the run's own folder, and it is the run that is resumed.
    owner = folder.parent if (folder.parent / "meta.json").is_file() else folder
    run, steps = shlex.quote(str(owner)), recipe.train.steps
    lines = {"run folder": run}
    if progress.step < steps:
        lines["continue"] = f"turnwise resume {run}"
    elif not briefly and recipe.stage == "imitation":
        played = [f"env={recipe.env.id}", f"model={folder}", *_settings_of_play(recipe)]
        lines["try next"] = shlex.join(["turnwise", "train", *played])
    elif not briefly:
        config = shlex.quote(str(folder / "config.yaml"))
        candidates = ("dpo", "ipo") if recipe.stage == "preference" else PRESETS
        other = next(name for name in candidates if name != recipe.algorithm.name)
        if recipe.stage != "preference" or recipe.eval.episodes:
            lines["evaluate"] = f"turnwise eval {run} {_more_episodes(recipe, progress)}"
        lines["train further"] = f"turnwise resume {run} train.steps={2 * steps}"
        lines["try next"] = f"turnwise train {config} algorithm={other} --output {shlex.quote(f'{folder}-{other}')}"
    return Text("\n".join(f"{label:<14} {printable(command)}" for label, command in lines.items()))


def _more_episodes(recipe: Recipe, progress: RunProgress) -> str:
    """How to measure better: on more tasks, or more often where the run has played all there are."""
    tasks = number(progress.evaluations[-1], "eval/tasks") if progress.evaluations else None
    return "--tries 8" if tasks is not None and tasks < recipe.eval.episodes else "--episodes 1000"


def _settings_of_play(recipe: Recipe) -> list[str]:
    """How the recipe plays, as changes on a command line: what differs from the defaults."""
    sections = {
        name: getattr(recipe, name).model_dump(mode="json", exclude_defaults=True) for name in ("env", "rollout")
    }
    sections["env.kwargs"] = sections["env"].pop("kwargs", {})
    sections["env"].pop("id", None)
    return [f"{section}.{key}={written(value)}" for section, found in sections.items() for key, value in found.items()]


def duration(seconds: float | None) -> str:
    """`75.2` as 1:15, with hours only if there are some."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
