"""Read a run folder: as much as possible (`read_run`), or all of it or nothing (`read_whole_run`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from turnwise.runs.disk import RunFolderError, open_plain
from turnwise.runs.folder import RunFolder
from turnwise.runs.journal import read_journal
from turnwise.runs.ledger import read_rows
from turnwise.runs.rows import row_of
from turnwise.runs.settings import runs_meant
from turnwise.untrusted import parse_shallow

Row = dict[str, Any]


@dataclass(kw_only=True, slots=True)
class RunData:
    """The content of a run folder; `problems` are sentences about what could not be read."""

    path: Path
    config: Row
    meta: Row
    metrics: list[Row]
    turns: list[Row]
    events: list[Row]
    evals: list[Row]
    history: list[Row]
    """Every command that started or resumed the run."""
    problems: list[str] = field(default_factory=list[str])
    policy: str = ""
    """Whose part of the run this is, where several policies learn."""

    @property
    def name(self) -> str:
        """The folder's name, and the policy's where several learn."""
        return f"{self.path.name} · {self.policy}" if self.policy else self.path.name

    def by_policy(self) -> list[RunData]:
        """The run once for each policy, where several learn: each with its own numbers."""
        policies = self.config.get("policies")
        table = policies if isinstance(policies, dict) else {}
        trained = [name for name, choice in table.items() if isinstance(choice, dict) and not choice.get("frozen")]
        if len(trained) < 2:
            return [self]
        return [self._of(policy, table[policy]) for policy in trained]

    def _of(self, policy: str, choices: Row) -> RunData:
        own = {name: choices[name] for name in ("model", "algorithm", "train") if name in choices}
        return replace(
            self,
            policy=policy,
            config={**self.config, **own},
            metrics=[row_of(row, policy) for row in self.metrics],
            evals=[row_of(row, policy) for row in self.evals],
            turns=[row for row in self.turns if row.get("policy") == policy],
            events=[event for event in self.events if event.get("policy", policy) == policy],
        )

    @property
    def algorithm(self) -> str:
        """The name of the run's algorithm; "unknown" if the config does not say."""
        section = self.config.get("algorithm")
        return str(section.get("name", "custom")) if isinstance(section, dict) else "unknown"

    @property
    def incidents(self) -> list[Row]:
        """What the guard reported, in order."""
        return [event for event in self.events if event.get("kind") == "guard"]

    def steps_with(self, prefix: str) -> list[int]:
        """Steps that have a file `rollouts/<prefix>_000120.jsonl.zst`."""
        stems = (file.name.split(".")[0].removeprefix(f"{prefix}_") for file in self._recorded(prefix))
        return sorted(int(stem) for stem in stems if stem.isdigit())

    def recorded(self, prefix: str, step: int) -> list[Row]:
        """The lines of a file under `rollouts/`, as many as are complete."""
        file = self.path / "rollouts" / f"{prefix}_{step:06d}.jsonl.zst"
        rows: list[Row] = []
        try:
            rows.extend(row for row in read_rows(file) if isinstance(row, dict))
        except (ValueError, OSError, EOFError) as error:
            self.problems.append(f"rollouts/{file.name} could not be read to its end ({_first_line(error)}).")
        return rows

    def _recorded(self, prefix: str) -> Iterator[Path]:
        return (self.path / "rollouts").glob(f"{prefix}_*.jsonl.zst")


def read_run(path: Path) -> RunData:
    """Everything but the trajectories, which are read on demand; ValueError only if there is no such folder.

    What is missing or broken becomes a sentence in `problems`.
    """
    if not path.is_dir():
        fix = runs_meant(path) or "name a folder that `turnwise train` wrote, such as runs/my-run"
        raise ValueError(f"{path} is not a run folder; {fix}")
    problems: list[str] = []
    run = RunData(
        path=path.resolve(),
        config=read_mapping(path / "config.yaml", yaml.safe_load, problems),
        meta=read_mapping(path / "meta.json", json.loads, problems),
        metrics=_by_step(_read_rows(path / "metrics.jsonl", problems)),
        turns=_read_rows(path / "turns.jsonl", problems),
        events=_read_rows(path / "events.jsonl", problems),
        evals=_by_step(_read_rows(path / "evals.jsonl", problems)),
        history=_read_rows(path / "history.jsonl", problems),
        problems=problems,
    )
    if not (run.config or run.meta or run.metrics):
        fix = runs_meant(path) or "config.yaml, meta.json and metrics.jsonl are all missing or unreadable"
        raise ValueError(f"{path} is not a run: {fix}")
    problems.extend(_find_damage(path))
    return run


def read_whole_run(path: str | Path) -> RunData:
    """The same for a folder that must be sound; RunFolderError names the first thing that is not."""
    folder = RunFolder.open(path)
    folder.check_journals()
    metrics, turns, events, evals, history = (
        read_journal(journal.path, {"step": int}) for journal in (*folder.journals.values(), folder.history)
    )
    return RunData(
        path=folder.path,
        config=folder.config,
        meta=folder.meta,
        metrics=_by_step(metrics),
        turns=turns,
        events=events,
        evals=_by_step(evals),
        history=history,
    )


def is_complete(path: str | Path) -> bool:
    """Whether a run has ended, by itself or by the guard; an interrupted one can be resumed."""
    events = read_journal(Path(path) / "events.jsonl", {"kind": str})
    return bool(events) and events[-1]["kind"] in ("finished", "stopped")


def _find_damage(path: Path) -> list[str]:
    """What can be read but is not what the run wrote; what cannot be read at all is reported elsewhere."""
    if not (path / "meta.json").is_file() or not (path / "config.yaml").is_file():
        return []
    try:
        RunFolder.open(path).check_journals()
    except RunFolderError as error:
        return [f"{_first_line(error)}."]
    return []


def read_mapping(file: Path, parse: Callable[[str], Any], problems: list[str]) -> Row:
    """A file of settings; if it cannot be read, nothing, and a sentence in `problems`."""
    if not file.exists():
        problems.append(f"{file.name} is missing.")
        return {}
    try:
        with open_plain(file) as opened:
            content = parse_shallow(parse, opened.read().decode())
    except (ValueError, OSError, yaml.YAMLError) as error:
        problems.append(f"{file.name} could not be read ({_first_line(error)}).")
        return {}
    if not isinstance(content, dict):
        problems.append(f"{file.name} is not a mapping.")
        return {}
    return content


def _read_rows(file: Path, problems: list[str]) -> list[Row]:
    if not file.exists():
        problems.append(f"{file.name} is missing.")
        return []
    try:
        return [row for row in read_journal(file) if isinstance(row.get("step"), int)]
    except (ValueError, OSError) as error:
        problems.append(f"{file.name} could not be read ({_first_line(error)}).")
        return []


def _by_step(rows: list[Row]) -> list[Row]:
    """One row per step, in order; if there are several, the last one counts."""
    return [row for _, row in sorted({row["step"]: row for row in rows}.items())]


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0] or type(error).__name__
