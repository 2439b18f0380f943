"""Tasks of one's own: the rows of a JSONL file or of a list, divided into splits, and a base for what plays them."""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from turnwise.envs.base import SPLITS, Env, Reset
from turnwise.untrusted import parse_shallow
from turnwise.words import counted

Row = dict[str, Any]
"""One task as it is written: `{"question": "2 + 2", "answer": "4"}`."""
TaskSource = str | Path | Sequence[Mapping[str, Any]]
"""The path of a JSONL file, or the rows themselves."""
HeldOutTasks = float | TaskSource
"""The share of rows that training never sees, or the rows themselves."""
_SHOWN = 5
"""Bad rows that an error names."""
_FORM = '{"question": "2 + 2", "answer": "4"}'
_SHOW_SPLITS = ", ".join(SPLITS)


@dataclass(frozen=True)
class TaskList:
    """The tasks of one split: `TaskList.of("tasks.jsonl", split="validation", held_out=0.1).rows`."""

    rows: tuple[Row, ...]
    """Without their `split`; no two are equal. All users share them: copy a row before you change it."""

    @classmethod
    def of(cls, source: TaskSource, *, split: str = "train", held_out: HeldOutTasks = 0.1) -> TaskList:
        """The rows of a split; ValueError names the file and the line.

        A row's own `split` decides. Of the others the share `held_out` is the validation split, rounded to whole rows:
        those of the smallest hashes. So the order of rows does not matter, and few change sides if others are added.
        Two rows or more leave at least one to train on, and at least one to hold out if none is marked `validation`.
        `held_out` may also be a file or list of its own, all of which is the validation split unless a row says
        otherwise.
        """
        if split not in SPLITS:
            raise ValueError(f"unknown split {split!r}; choose one of {_SHOW_SPLITS}")
        rows = _rows(_key(source, "tasks"), _held_out_key(held_out), split)
        if not rows:
            raise ValueError(f"{_name(source)}: there is no task for the split {split!r}; {_fix(split)}")
        return cls(rows=rows)


class TaskEnv(Env):
    """Base of environments that play the rows of a file or list: `env.kwargs.tasks: my_tasks.jsonl` in a recipe.

    A subclass says how a task begins (`begin`) and what a turn does to it (`step`, which reads `self.task`):

        class Sums(TaskEnv):
            def begin(self, task):
                return f"What is {task['question']}?"

            def step(self, action):
                right = self.task["answer"] in action
                return "", float(right), True, False, {"success": right}

    Training draws rows of the training split; evaluation plays each held-out row once (`list_tasks`).
    """

    shared: ClassVar[frozenset[str]] = frozenset({"tasks"})

    def __init__(self, *, tasks: TaskSource, held_out: HeldOutTasks = 0.1, split: str = "train") -> None:
        super().__init__(split=split)
        self.tasks = TaskList.of(tasks, split=split, held_out=held_out).rows
        self.task: Row = self.tasks[0]

    def begin(self, task: Row) -> str:
        """The first observation of a task. Draw from `self.rng` if you need chance."""
        raise NotImplementedError(f"{type(self).__name__} must define begin(task)")

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Draw a row of the split, or take the given one."""
        super().reset(seed=seed)
        self.task = copy.deepcopy(self.rng.choice(self.tasks) if task is None else dict(task))
        return self.begin(self.task), {"task": copy.deepcopy(self.task)}

    def list_tasks(self) -> list[Row]:
        """Every row of the split, once."""
        return copy.deepcopy(list(self.tasks))


def require_file(source: str | Path, name: str) -> Path:
    """The file that the argument `name` gives; ValueError if there is none."""
    file = Path(source).expanduser()
    if not file.is_file():
        close = difflib.get_close_matches(file.name, [each.name for each in file.parent.glob(f"*{file.suffix}")], n=1)
        hint = f"did you mean {file.with_name(close[0])}? " if close else ""
        raise ValueError(
            f"no such file: {file}; {hint}{name}= names a JSONL file with {_FORM} on each line, or is a list"
        )
    return file


def _key(source: TaskSource, name: str) -> tuple[str, int]:
    """What identifies the rows: a path and when it changed, or the rows as text and -1."""
    if isinstance(source, str | Path):
        file = require_file(source, name)
        return str(file), file.stat().st_mtime_ns
    if not isinstance(source, Sequence):
        raise ValueError(f"{name} is {source!r}; write the path of a JSONL file, or a list of rows such as {_FORM}")
    try:
        return "\n".join(json.dumps(row) for row in source), -1
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name}: rows are plain data such as {_FORM}, so that they can be written: {error}") from None


def _held_out_key(held_out: HeldOutTasks) -> float | tuple[str, int]:
    if not isinstance(held_out, int | float):
        return _key(held_out, "held_out")
    if not 0 < held_out < 1:
        raise ValueError(f"held_out is {held_out}; write a share between 0 and 1, a file or a list")
    return held_out


@dataclass(frozen=True, kw_only=True)
class _Written:
    """A row as text, without its split."""

    text: str
    split: str | None
    """What the row itself says."""

    @property
    def place(self) -> float:
        """A number from 0 to 1 that is the row's own in every process and on every machine."""
        return int.from_bytes(hashlib.sha256(_same(self.text).encode()).digest()[:8], "big") / 2**64


@lru_cache(maxsize=32)
def _rows(tasks: tuple[str, int], held_out: float | tuple[str, int], split: str) -> tuple[Row, ...]:
    """The different rows of a split, read once per process, and again if a file changes."""
    rows = _read(tasks)
    if isinstance(held_out, tuple):
        others = _read(held_out)
        places = {key: row.split or "train" for key, row in rows.items()}
        places |= {key: row.split or "validation" for key, row in others.items()}
        rows |= others
    else:
        kept = _choose_held_out(rows.values(), held_out)
        places = {key: row.split or ("validation" if row in kept else "train") for key, row in rows.items()}
    return tuple(json.loads(row.text) for key, row in rows.items() if places[key] == split)


def _choose_held_out(rows: Iterable[_Written], share: float) -> set[_Written]:
    """The rows of the validation split, of those that do not say where they belong."""
    rows = list(rows)
    free = sorted((row for row in rows if row.split is None), key=lambda row: row.place)
    if len(free) < 2:
        return set()
    marked = any(row.split == "validation" for row in rows)
    count = min(max(round(share * len(free)), 0 if marked else 1), len(free) - 1)
    return set(free[:count])


def _read(key: tuple[str, int]) -> dict[str, _Written]:
    """The different rows, each under a text that equal rows share."""
    content, changed = key
    text = content if changed < 0 else Path(content).read_text(encoding="utf-8-sig", errors="replace")
    name, found, wrong = "the list" if changed < 0 else content, dict[str, _Written](), list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = _parse(line)
            known = found.setdefault(_same(row.text), row)
            if known.split != row.split:
                raise ValueError(f"the same task is in the split {known.split!r} above; remove one of them")
        except ValueError as error:
            wrong.append(f"{'row' if changed < 0 else 'line'} {number}: {error}")
    if wrong and changed >= 0 and text.lstrip().startswith("["):
        raise ValueError(
            f"{name} is one JSON list; write its tasks one per line, without brackets and commas around them"
        )
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ValueError(f"{name} has {counted(len(wrong), 'bad task')}: {'; '.join(wrong[:_SHOWN])}{more}")
    if not found:
        raise ValueError(f"{name} has no tasks; write rows such as {_FORM}")
    return found


def _parse(line: str) -> _Written:
    try:
        row = parse_shallow(json.loads, line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno}); write one object per line") from None
    if not isinstance(row, dict):
        raise ValueError(f"not an object; write {_FORM}")
    split = row.pop("split", None)
    if split not in (None, *SPLITS):
        raise ValueError(f"its split is {split!r}; choose one of {_SHOW_SPLITS}")
    return _Written(text=json.dumps(row), split=split)


def _same(text: str) -> str:
    """A text that two rows share if they differ in the order of their fields alone."""
    return json.dumps(json.loads(text), sort_keys=True)


def _name(source: TaskSource) -> str:
    return str(source) if isinstance(source, str | Path) else f"the list of {counted(len(source), 'task')}"


def _fix(split: str) -> str:
    mark = f'mark rows with "split": "{split}"'
    return mark if split == "test" else f"add rows, change held_out, or {mark}"
