"""One terminal task, and folders of them on disk.

DIR/<name>/task.json               name, description, truth, family, complexity, solution
DIR/<name>/setup.sh                builds the start tree
DIR/<name>/test_initial_state.py   the tree is as promised, and no output exists yet
DIR/<name>/test_final_state.py     the task is solved
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from turnwise.untrusted import parse_shallow

HOME = "/home/user"
TASK_FILE = "task.json"
_SETUP, _INITIAL, _FINAL = "setup.sh", "test_initial_state.py", "test_final_state.py"
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FOLDER = re.compile(
    r"/home/user|/(?!(?:bin|boot|code|dev|etc|home|lib\w*|proc|python|sbin|sys|tmp|usr)$)[a-z][a-z0-9_-]*"
)


@dataclass(frozen=True)
class TerminalTask:
    """What is asked for in words, the tree it starts from, and the hidden test that decides."""

    name: str
    """Unique in a set, and a safe file name: `csv-0003-s17`."""
    instruction: str
    """Public: absolute paths under /home/user, exact formats."""
    truth: Mapping[str, Any]
    """JSON; never enters the sandbox before the end."""
    setup: str
    """Bash, run once in an empty /home/user to build the start tree; deterministic, without network."""
    initial_test: str
    """Python with the standard library only, run before the first turn: exit 0 if all is as promised."""
    final_test: str
    """Python with the standard library only, run after the last turn with the truth as JSON on stdin: 0 if solved."""
    solution: tuple[str, ...] = ()
    """Commands of the scripted solver, one per turn; empty if unknown."""
    family: str = ""
    complexity: int = 0
    folder: str = HOME
    """Where the shell starts: /home/user, or a folder that can be written like it, such as /app."""

    def __post_init__(self) -> None:
        if not _SAFE_NAME.fullmatch(self.name):
            raise ValueError(f"task name {self.name!r} is not a safe file name; use letters, digits, '.', '_' and '-'")
        if not _FOLDER.fullmatch(self.folder):
            raise ValueError(f"{self.name}: a shell cannot start in {self.folder!r}; use {HOME} or a folder like /app")

    def as_dict(self) -> dict[str, Any]:
        """The plain form that `info["task"]` has and `reset(task=…)` takes."""
        return asdict(self) | {"truth": dict(self.truth), "solution": list(self.solution)}

    @classmethod
    def from_dict(cls, given: Any) -> TerminalTask:
        """Rebuild a task, even from JSON; ValueError if it cannot be read."""
        known = {entry.name for entry in fields(cls)}
        if not isinstance(given, Mapping) or set(cast("Mapping[str, Any]", given)) != known:
            raise ValueError(f"task= must be a dict with the keys {', '.join(sorted(known))}, as in info['task']")
        return _checked(cast("Mapping[str, Any]", given), "task=")


def read_tasks(path: str | Path) -> list[TerminalTask]:
    """All tasks of a folder, sorted by name; ValueError if there is none or one cannot be read."""
    folders = sorted(file.parent for file in Path(path).glob(f"*/{TASK_FILE}"))
    if not folders:
        raise ValueError(f"{path} is not a folder of terminal tasks; it has no */{TASK_FILE}")
    return [read_task(folder) for folder in folders]


def read_task(folder: Path) -> TerminalTask:
    """The task of one folder; ValueError, with the file's name, if it cannot be read."""
    try:
        entries = parse_shallow(json.loads, (folder / TASK_FILE).read_text(encoding="utf-8"))
        if not isinstance(entries, dict) or "description" not in entries:
            raise ValueError(f"{TASK_FILE} must be an object with name, description and truth")
        given = cast("dict[str, Any]", entries)
        sources = {"setup": _SETUP, "initial_test": _INITIAL, "final_test": _FINAL}
        texts = {key: (folder / file).read_text(encoding="utf-8") for key, file in sources.items()}
        task = _checked({**given, "instruction": given["description"], **texts}, TASK_FILE)
        if task.name != folder.name:
            raise ValueError(f"{TASK_FILE} names {task.name!r}; rename the folder to that")
        return task
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read the terminal task {folder}: {error}") from error


def write_task(folder: str | Path, task: TerminalTask) -> Path:
    """Write `folder/<name>/`, `task.json` last, so that a task with one is whole; returns its folder."""
    place = Path(folder) / task.name
    place.mkdir(parents=True, exist_ok=True)
    for file, text in ((_SETUP, task.setup), (_INITIAL, task.initial_test), (_FINAL, task.final_test)):
        (place / file).write_text(text, encoding="utf-8")
    entries = {
        **{"name": task.name, "description": task.instruction, "truth": dict(task.truth)},
        **{"family": task.family, "complexity": task.complexity, "solution": list(task.solution)},
    }
    entries |= {} if task.folder == HOME else {"folder": task.folder}
    draft = place / f".{TASK_FILE}"
    draft.write_text(json.dumps(entries, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(place / TASK_FILE)
    return place


def _checked(given: Mapping[str, Any], where: str) -> TerminalTask:
    """The task of entries whose types are right; entries with a default may be missing."""
    wanted: dict[str, tuple[type, Any]] = {
        **dict.fromkeys(("name", "instruction", "setup", "initial_test", "final_test"), (str, None)),
        **{"truth": (Mapping, None), "solution": (Sequence, ()), "family": (str, ""), "complexity": (int, 0)},
        "folder": (str, HOME),
    }
    entries = {name: given.get(name, default) for name, (_, default) in wanted.items()}
    for name, (kind, _) in wanted.items():
        if not isinstance(entries[name], kind) or isinstance(entries[name], bool):
            raise ValueError(f"{where}: {name} must be {_KINDS[kind]}, not {entries[name]!r}"[:300])
    if not all(isinstance(command, str) for command in entries["solution"]) or isinstance(entries["solution"], str):
        raise ValueError(f"{where}: solution must be a list of commands")
    return TerminalTask(**{**entries, "solution": tuple(entries["solution"])})


_KINDS: Mapping[type, str] = {str: "text", Mapping: "an object", Sequence: "a list", int: "a whole number"}
