"""The study of a claim about tables: every table on every seed, in processes, each with its numbers in a file."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from turnwise.envs.cards.dhumbal_heuristics import CardPlayer
from turnwise.envs.cards.dhumbal_players import make_player
from turnwise.envs.cards.dhumbal_table import play_table
from turnwise.evaluate.player_statistics import compare_players
from turnwise.reproduce.table_claim import PlayerChoice, TableChoice, TableClaim, TableScale
from turnwise.reproduce.table_verdict import conclude_tables
from turnwise.reproduce.verdict import Judgement
from turnwise.runs.disk import write_whole
from turnwise.study.jobs import Job
from turnwise.study.processes import run_jobs
from turnwise.train.card_files import LearnedCards
from turnwise.words import counted

RESULT, LEARNED = "table.json", "learned"
"""A table's numbers, and the folder of players that have learned."""


@dataclass(frozen=True, kw_only=True)
class TableRun:
    """One table on one seed."""

    table: str
    seed: int
    choice: TableChoice
    rounds: int

    @property
    def name(self) -> str:
        """The display name."""
        return f"{self.table}, seed {self.seed}"

    def folder(self, output: Path) -> Path:
        """Where its numbers are."""
        return output / "runs" / self.table / f"seed-{self.seed}"

    def order(self) -> dict[str, Any]:
        """All that decides it, as plain data."""
        return {"seed": self.seed, "rounds": self.rounds, "table": self.choice.model_dump(mode="json")}


class TableQueue:
    """The tables that are not played yet."""

    def __init__(self, runs: list[TableRun], output: Path) -> None:
        self._runs, self._output = runs, output

    def take(self) -> Job | None:
        """The next table, with its order written beside its folder."""
        if not self._runs:
            return None
        run = self._runs.pop(0)
        folder = run.folder(self._output)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder.with_name(f"{folder.name}.json")
        write_whole(file, json.dumps(run.order()).encode())
        return Job(name=run.name, stage="table", recipe=file, folder=folder)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[str]:
        return iter([run.name for run in self._runs])


def table_runs(claim: TableClaim, scale: TableScale) -> list[TableRun]:
    """All tables that a scale plays: each of one seed before the next seed."""
    tables = {name: claim.tables[name] for name in scale.tables or claim.tables}
    return [
        TableRun(table=name, seed=seed, choice=choice, rounds=choice.rounds or scale.rounds)
        for seed in range(scale.first_seed, scale.first_seed + scale.seeds)
        for name, choice in tables.items()
    ]


class TableStudy:
    """A claim about tables at one scale in one folder, used like `Study`."""

    device = "cpu"

    def __init__(self, claim: TableClaim, scale: str, output: Path, settings: Mapping[str, Any] | None = None) -> None:
        if settings:
            raise ValueError(f"{next(iter(settings))} cannot be set: the tables are fixed; write your own claim.yaml")
        self.claim, self.scale, self.output = claim, claim.scale(scale), output
        self.runs = table_runs(claim, self.scale)

    def run(self, *, jobs: int, report: Callable[[str], None], minutes: float | None = None) -> dict[str, str]:
        """Play what is missing; returns what went wrong. After `minutes` no new table starts."""
        deadline = None if minutes is None else time.monotonic() + 60 * minutes
        queue = TableQueue([run for run in self.runs if self._result(run) is None], self.output)
        if not len(queue):
            return {}
        report(f"{counted(len(queue), 'table')} to play, {jobs} at once")
        return run_jobs(queue, perform_table, jobs=jobs, report=report, deadline=deadline)

    def write_results(self) -> list[dict[str, Any]]:
        """Write `results.json`, all that the verdict needs, and return its rows."""
        found = [(run, self._result(run)) for run in self.runs]
        rows = [{"arm": run.table, "seed": run.seed, **result["found"]} for run, result in found if result is not None]
        self.output.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(row) for row in rows)
        write_whole(self.output / "results.json", f"[\n{lines}\n]\n".encode())
        return rows

    def conclude(self, rows: list[dict[str, Any]]) -> list[Judgement]:
        """Write the verdict; returns the findings."""
        return conclude_tables(self.claim, self.scale, rows, self.output)

    def _result(self, run: TableRun) -> dict[str, Any] | None:
        """What a table has found; None if it is not played yet, ValueError if another one was."""
        file = run.folder(self.output) / RESULT
        if not file.is_file():
            return None
        result = json.loads(file.read_text())
        if result["order"] != run.order():
            raise ValueError(f"{file} is of another table; choose another --output, or remove that folder")
        return result


def perform_table(job: Job) -> str:
    """Play a table and write its numbers; returns what went wrong, which is nothing."""
    order = json.loads(job.recipe.read_text())
    choice = TableChoice.model_validate(order["table"])
    learned = job.folder.parents[2] / LEARNED
    players = {name: _seat(each, order["seed"], learned) for name, each in choice.players.items()}
    records = play_table(players, rounds=order["rounds"], seed=order["seed"], **choice.options)
    numbers = {name: record.metrics() for name, record in records.items()}
    metrics = {f"{metric}/{name}": value for name, found in numbers.items() for metric, value in found.items()}
    rates = {name: found["win_rate"] for name, found in numbers.items()}
    for name, rate in rates.items():
        metrics[f"margin/{name}"] = rate - max(other for rival, other in rates.items() if rival != name)
    tests = compare_players(records)
    metrics |= {f"p/{test.first}/{test.second}": test.p for test in tests if test.metric == "win_rate"}
    result = {"order": order, "found": {"metrics": metrics, "tests": [asdict(test) for test in tests]}}
    write_whole(job.folder / RESULT, json.dumps(result).encode())
    return ""


def _seat(choice: PlayerChoice, seed: int, folder: Path) -> CardPlayer:
    """A player for a table. One that learns does so once for all tables with its seed, if it can be saved."""
    if not choice.learns:
        return make_player(choice.player, **choice.options)
    said = json.dumps([choice.player, choice.options, seed], sort_keys=True)
    file = folder / f"{hashlib.sha256(said.encode()).hexdigest()[:16]}.safetensors"
    if not file.is_file():
        player = make_player(choice.player, **choice.options, seed=seed)
        save: Callable[[Path], None] | None = getattr(player, "save", None)
        if save is None:
            return player
        draft = file.with_suffix(f".{os.getpid()}")  # two tables may learn the same at once
        save(draft)
        draft.replace(file)
    return LearnedCards(file)
