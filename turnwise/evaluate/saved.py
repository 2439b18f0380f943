"""Evaluations as files: what was played and how it ended, task by task, so that two can be compared on equal tasks."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from turnwise import __version__
from turnwise.evaluate.comparison import Estimate
from turnwise.evaluate.statistics import cautious_difference
from turnwise.recipe.schema import Recipe
from turnwise.runs.disk import open_plain, write_whole
from turnwise.runs.journal import plain
from turnwise.runs.rows import is_number
from turnwise.types import Group, Trajectory
from turnwise.untrusted import parse_shallow

SCHEMA = 1
_KIND = "saved evaluation"
_MEASURES = ("success", "reward")
"""What is compared on equal tasks."""


@dataclass(frozen=True, kw_only=True)
class SavedEvaluation:
    """One evaluation: of which model, where, with which settings, its metrics, and how each task ended."""

    label: str
    command: list[str]
    time: str
    turnwise: str
    env: dict[str, Any]
    """The environment with its arguments: tasks are equal only where these are."""
    settings: dict[str, Any]
    metrics: dict[str, Any]
    """`eval/…` with intervals, as printed."""
    tasks: list[dict[str, Any]]
    """For each task `task` (what makes it the same), `seat`, and lists with an entry for each sound try: `success`,
    `reward`, `turns`; `faults` counts the others."""

    @property
    def outcomes(self) -> dict[tuple[str, str], dict[str, float]]:
        """Mean success and reward of each task and seat that was played soundly; several policies are averaged."""
        found: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for row in self.tasks:
            if row["success"]:
                found[row["task"], row["seat"]].append(row)
        return {
            key: {name: fmean(fmean(row[name]) for row in rows) for name in _MEASURES} for key, rows in found.items()
        }


def describe_evaluation(
    recipe: Recipe, metrics: Mapping[str, float], groups: Sequence[Group], *, label: str, command: Sequence[str]
) -> SavedEvaluation:
    """An evaluation that was just played: `groups` are its episodes, whoever played them."""
    rollout = recipe.rollout
    return SavedEvaluation(
        label=label,
        command=list(command),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        turnwise=__version__,
        env=recipe.held_out_env.model_dump(mode="json", exclude={"check"}),
        settings={
            "tries": recipe.eval.tries,
            "temperature": recipe.eval.temperature,
            "max_turns": rollout.max_turns,
            "max_tokens": rollout.max_tokens,
            "seed": recipe.seed,
            "system": recipe.model.system,
        },
        metrics=dict(metrics),
        tasks=[_task_row(group.trajectories) for group in groups if group.trajectories],
    )


def require_new(path: Path) -> Path:
    """The file to save to, before anything is played; ValueError if it cannot be, or is there already."""
    if path.exists():
        raise ValueError(f"{path} exists, and nothing is overwritten; choose another name with --save")
    if any(parent.exists() and not parent.is_dir() for parent in path.parents):
        raise ValueError(f"{path} cannot be written: its folder is a file; choose another name with --save")
    return path


def save_evaluation(path: Path, evaluation: SavedEvaluation) -> None:
    """Write it as JSON, whole or not at all."""
    content = {"kind": _KIND, "schema": SCHEMA, **asdict(evaluation)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(plain(content, lambda _: None), indent=1).encode())


def read_evaluation(path: Path) -> SavedEvaluation:
    """Read it back; ValueError for any other file."""
    try:
        with open_plain(path) as file:
            content = parse_shallow(json.loads, file.read().decode())
        if content.pop("kind") != _KIND or content.pop("schema") != SCHEMA:
            raise ValueError("it is of another kind")
        found = SavedEvaluation(**content)
        _require_form(found)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a saved evaluation ({error}); write one with `turnwise eval … --save FILE`"
        ) from None
    return found


def _require_form(found: SavedEvaluation) -> None:
    """Whoever reads an evaluation relies on it: of a file that somebody else wrote, it must be so."""
    parts = {"label": str, "env": dict, "settings": dict, "metrics": dict, "tasks": list}
    wrong = [name for name, kind in parts.items() if not isinstance(getattr(found, name), kind)]
    if wrong or not all(map(_is_task_row, found.tasks)):
        raise ValueError(f"{wrong[0] if wrong else 'a task'} does not have the form it is saved in")


def _is_task_row(row: Any) -> bool:
    if not isinstance(row, dict) or not is_number(row.get("faults")):
        return False
    tries: list[Any] = [row.get(name) for name in _MEASURES]
    return (
        all(isinstance(row.get(name), str) for name in ("task", "seat"))
        and all(isinstance(each, list) and all(map(is_number, each)) for each in tries)
        and len({len(each) for each in tries}) == 1
    )


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How an evaluation differs from the first one on the tasks that both have."""

    tasks: int
    success: Estimate
    reward: Estimate
    better: int
    """Tasks on which its success was higher."""
    worse: int


def difference(first: SavedEvaluation, other: SavedEvaluation) -> Difference | None:
    """Paired by task; None if the environments differ or no task is common."""
    before, after = first.outcomes, other.outcomes
    common = sorted(before.keys() & after.keys()) if first.env == other.env else []
    if not common:
        return None
    rewards = [outcome["reward"] for each in (before, after) for outcome in each.values()]
    spans = {"success": 1.0, "reward": max(rewards) - min(rewards)}
    estimates = {
        name: _paired([after[key][name] for key in common], [before[key][name] for key in common], spans[name])
        for name in _MEASURES
    }
    changes = [after[key]["success"] - before[key]["success"] for key in common]
    return Difference(
        tasks=len(common),
        **estimates,
        better=sum(change > 0 for change in changes),
        worse=sum(change < 0 for change in changes),
    )


def unlike(first: SavedEvaluation, other: SavedEvaluation) -> str:
    """What else than the model differs between two evaluations; empty if nothing does."""
    if first.env != other.env:
        keys = [key for key in first.env if first.env[key] != other.env.get(key)]
        return f"{other.label} was played elsewhere than {first.label} (env.{keys[0] if keys else 'id'})"
    settings = [
        f"{key}: {first.settings.get(key)} and {value}"
        for key, value in other.settings.items()
        if first.settings.get(key) != value
    ]
    return f"{first.label} and {other.label} differ in {', '.join(settings)}" if settings else ""


def _paired(after: list[float], before: list[float], span: float) -> Estimate:
    """Without an interval where one task, or rewards that are all the same, tell nothing of the spread."""
    value = fmean(after) - fmean(before)
    if len(after) < 2 or span == 0:
        return Estimate(value=value)
    low, high = cautious_difference(after, before, span=span)
    return Estimate(value=value, low=low, high=high)


def _task_row(tries: Sequence[Trajectory]) -> dict[str, Any]:
    first, sound = tries[0], [each for each in tries if not each.stop.is_failure]
    return {
        "task": f"seed {first.seed}" if first.task is None else _digest(first.task),
        "seat": first.seat,
        "success": [float(each.success) for each in sound],
        "reward": [each.reward for each in sound],
        "turns": [len(each.turns) for each in sound],
        "faults": len(tries) - len(sound),
    }


def _digest(task: Any) -> str:
    text = json.dumps(plain(task, str), sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
