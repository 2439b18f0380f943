"""From drafts to tasks that are known to be sound: four stages with a gate behind each (Endless Terminals).

1. description: the words, and a hidden truth that they do not give away;
2. initial: a tree that can be built and on which the initial test passes;
3. final: a hidden test that can be compiled and that the untouched tree fails;
4. solve: at least one of some tries succeeds (pass@k > 0).

`log.jsonl` has a line for every gate that a draft came to. A folder that was left in the middle is continued: no
verdict is asked for twice, and a draft goes on behind the last gate that it passed.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from turnwise.envs.terminals.terminal_env import COMMAND_SECONDS
from turnwise.envs.terminals.terminal_task import TerminalTask, write_task
from turnwise.envs.terminals.terminal_world import World
from turnwise.evaluate.statistics import pass_at_k
from turnwise.runs.disk import write_whole

STAGES = ("description", "initial", "final", "solve")
LOG, _SETTINGS = "log.jsonl", "settings.json"
_DRAFTS = ".drafts"
_TELLING = 24
"""A text of the truth with fewer characters can be in the words by chance."""


class TaskAuthor(Protocol):
    """Who writes a task, one stage after another; ValueError if it cannot."""

    def describe(self, name: str) -> TerminalTask:
        """Words and truth."""
        ...

    def prepare(self, task: TerminalTask) -> TerminalTask:
        """With a setup and an initial test."""
        ...

    def examine(self, task: TerminalTask) -> TerminalTask:
        """With a final test."""
        ...


Solver = Callable[[TerminalTask, int], int]
"""How many of so many tries at a task succeed."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """What a stage says about a draft."""

    name: str
    stage: str
    ok: bool
    reason: str = ""
    tries: int = 0
    solved: int = 0

    def line(self) -> str:
        """As a line of the log."""
        entries = {key: value for key, value in vars(self).items() if value or key == "ok"}
        return json.dumps(entries) + "\n"


@dataclass(frozen=True, kw_only=True)
class Stages:
    """All stages: `Stages(author=…, solver=…).run(names, folder)`.

    A task is kept if pass@k is above 0. With `learnable` it must also have failed once: a policy like the solver learns
    nothing from a task that it always solves.
    """

    author: TaskAuthor
    solver: Solver
    tries: int = 16
    k: int = 16
    learnable: bool = False

    def run(
        self, names: Sequence[str], folder: Path, *, jobs: int = 1, report: Callable[[Gate], None] | None = None
    ) -> list[Gate]:
        """Take every draft as far as it comes, and write those that pass; returns all gates of these names."""
        log = _Log(folder)
        open_names = [name for name in names if not log.is_decided(name)]

        def take(name: str) -> None:
            for gate in self._gates(name, folder, log.stage_of(name)):
                log.add(gate)
                if report is not None:
                    report(gate)

        with ThreadPoolExecutor(max_workers=jobs) as workers:
            try:
                for done in [workers.submit(take, name) for name in open_names]:
                    done.result()
            finally:
                workers.shutdown(cancel_futures=True)  # an error must not wait for thousands of drafts
        wanted = set(names)
        return [gate for gate in log.gates if gate.name in wanted]

    def _gates(self, name: str, folder: Path, passed: int) -> Iterator[Gate]:
        """The gates from the one after those that are passed to the first that holds the draft back."""
        draft = folder / _DRAFTS / f"{name}.json"
        task = _read_draft(draft)
        passed = passed if task is not None else 0
        for stage in STAGES[passed:]:
            try:
                task = self._write(stage, name, task)
                gate = self._judge(stage, task)
            except ValueError as error:
                gate = Gate(name=name, stage=stage, ok=False, reason=str(error))
            over = not gate.ok or stage == STAGES[-1]
            if not over and task is not None:
                draft.parent.mkdir(parents=True, exist_ok=True)
                write_whole(draft, json.dumps(task.as_dict()).encode())
            elif gate.ok and task is not None:
                write_task(folder, task)
            yield gate
            if over:
                draft.unlink(missing_ok=True)
                return

    def _write(self, stage: str, name: str, task: TerminalTask | None) -> TerminalTask:
        if task is None or stage == "description":
            return self.author.describe(name)
        steps = {"initial": self.author.prepare, "final": self.author.examine}
        return steps[stage](task) if stage in steps else task

    def _judge(self, stage: str, task: TerminalTask) -> Gate:
        if stage == "solve":
            solved = self.solver(task, self.tries)
            rate = pass_at_k(self.tries, solved, self.k)
            ok = rate > 0 and not (self.learnable and solved == self.tries)
            reason = "" if ok else "always solved" if solved else "never solved"
            return Gate(name=task.name, stage=stage, ok=ok, reason=reason, tries=self.tries, solved=solved)
        reason = {"description": _judge_words, "initial": _judge_tree, "final": _judge_test}[stage](task)
        return Gate(name=task.name, stage=stage, ok=not reason, reason=reason)


def truth_texts(truth: Any) -> Iterator[str]:
    """All texts in a truth, at any depth."""
    if isinstance(truth, str):
        yield truth
    elif isinstance(truth, Mapping):
        yield from (text for value in cast("Mapping[str, Any]", truth).values() for text in truth_texts(value))
    elif isinstance(truth, Sequence):
        yield from (text for value in cast("Sequence[Any]", truth) for text in truth_texts(value))


def _judge_words(task: TerminalTask) -> str:
    """What is wrong with a description; empty if nothing is."""
    if not task.instruction.strip() or not task.truth:
        return "words or truth are empty"
    texts = (text.strip() for text in truth_texts(task.truth))
    told = [text for text in texts if len(text) >= _TELLING and text[0] != "/" and text in task.instruction]
    return f"the words give the truth away: {told[0][:80]!r}" if told else ""


def _judge_tree(task: TerminalTask) -> str:
    with World.open(task.setup, folder=task.folder) as world:
        check = world.check(task.initial_test)
    return "" if check.ok else f"the initial test fails: {check.output.strip()[-300:]}"


def _judge_test(task: TerminalTask) -> str:
    try:
        compile(task.final_test, "test_final_state.py", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:  # the last two: nested too deep
        return f"the final test is not Python: {str(error) or 'it is nested too deep'}"
    return "the untouched tree passes the final test" if is_solved(task, ()) else ""


def is_solved(task: TerminalTask, commands: Iterable[str], seconds: float = COMMAND_SECONDS) -> bool:
    """Whether these commands in a fresh world satisfy the final test."""
    with World.open(task.setup, folder=task.folder) as world:
        shell = world.shell()
        for command in commands:
            if shell.run(command, seconds).ended:
                return False
        return world.check(task.final_test, json.dumps(dict(task.truth))).ok


def require_same_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Note the settings of a new folder; ValueError if it was begun with others."""
    file = folder / _SETTINGS
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; name a new one")
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(dict(settings)) + "\n", encoding="utf-8")
        return
    before: Any = json.loads(file.read_text(encoding="utf-8"))
    if changed := [name for name, value in settings.items() if before.get(name) != value]:
        name = changed[0]
        raise ValueError(
            f"{folder} was begun with {name} {before.get(name)!r}, not {settings[name]!r}; name another folder"
        )


def count_gates(gates: Sequence[Gate]) -> dict[str, Counter[str]]:
    """How many drafts each stage let through and held back."""
    counts = {stage: Counter[str]() for stage in STAGES}
    for gate in gates:
        counts[gate.stage]["passed" if gate.ok else "removed"] += 1
    return counts


def read_log(folder: Path) -> list[Gate]:
    """The gates of a folder's log; a last line that a kill cut short does not count."""
    file = folder / LOG
    if not file.exists():
        return []
    whole = file.read_text(encoding="utf-8").rpartition("\n")[0]
    try:
        return [Gate(**json.loads(line)) for line in whole.splitlines()]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file} is not a log of the stages ({error}); name another folder") from error


class _Log:
    """The gates so far; safe for several threads."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.gates = read_log(folder)
        self._file = folder / LOG
        write_whole(self._file, "".join(gate.line() for gate in self.gates).encode())
        self._lock = threading.Lock()
        self._last = {gate.name: gate for gate in self.gates}

    def is_decided(self, name: str) -> bool:
        """Whether the draft came to its end."""
        last = self._last.get(name)
        return last is not None and (not last.ok or last.stage == STAGES[-1])

    def stage_of(self, name: str) -> int:
        """How many gates the draft has passed."""
        last = self._last.get(name)
        return 0 if last is None else STAGES.index(last.stage) + 1

    def add(self, gate: Gate) -> None:
        """Write a line at once."""
        with self._lock, self._file.open("a", encoding="utf-8") as file:
            file.write(gate.line())
            self.gates.append(gate)


def _read_draft(file: Path) -> TerminalTask | None:
    """A draft between two stages; None if there is none, or one that a kill cut short."""
    try:
        return TerminalTask.from_dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
