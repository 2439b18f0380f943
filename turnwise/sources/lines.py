"""Files with one example per line: one error lists every bad line, with its number and the fix."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from turnwise.sources.demonstrations import longest_sequence
from turnwise.types import Group, Trajectory, Turn
from turnwise.untrusted import parse_shallow
from turnwise.words import counted

_SHOWN = 10
"""Bad lines that one error lists."""
_TOGETHER = 1000
"""Lines that are prepared together."""


def read_groups_of(
    path: str | Path,
    read: Callable[[Any], Sequence[Trajectory]],
    *,
    form: str,
    key: str,
    limit: int | None = None,
    room: int | None = None,
    prepare: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
) -> list[Group]:
    """A group for each of the first `limit` lines of a JSONL file; `read` makes its trajectories or raises ValueError.

    `form` shows what a line looks like, `key` is the recipe's key for the file. A line that makes more than `room`
    tokens is bad too; one that makes no trajectory is left out. `prepare` makes many lines at once into what `read` is
    given, or into the ValueError that says what is wrong with one.
    """
    groups, problems, read_any = list[Group](), list[str](), False
    for number, row in _rows(Path(path), key, prepare):
        if limit is not None and len(groups) == limit:
            break
        try:
            if isinstance(row, ValueError):
                raise row
            trajectories = read(row)
            for trajectory in trajectories:
                _require_fits(trajectory.turns, room)
        except (ValueError, TemplateError) as error:
            problems.append(f"{path}, line {number}: {_fixable(error, form)}")
        else:
            read_any = True
            if trajectories:
                groups.append(_named(f"{Path(path).name}:{number}", trajectories))
    if problems:
        more = [f"and {counted(len(problems) - _SHOWN, 'more bad line')}"] if len(problems) > _SHOWN else []
        raise ValueError("\n".join([*problems[:_SHOWN], *more]))
    if not read_any:
        raise ValueError(f"{path} is empty; write one example to a line, as {form}")
    return groups


def read_text(path: Path, key: str) -> str:
    """A file's text; ValueError with the fix."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); convert it to UTF-8") from error
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror}); set {key} to a file that exists") from error


def _rows(
    path: Path, key: str, prepare: Callable[[Sequence[Any]], Sequence[Any]] | None
) -> Iterator[tuple[int, Any | ValueError]]:
    """What the lines say, numbered, or what is wrong with them."""
    lines = _lines(path, key)
    while several := list(islice(lines, _TOGETHER)):
        rows = [_parsed(line) for _, line in several]
        prepared = rows if prepare is None else prepare(rows)
        yield from zip((number for number, _ in several), prepared, strict=True)


def _parsed(line: str) -> Any | ValueError:
    try:
        return parse_shallow(json.loads, line)
    except ValueError as error:
        return error


def _lines(path: Path, key: str) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank."""
    # Not splitlines: a JSON string may contain line separators of Unicode.
    lines = read_text(path, key).split("\n")
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def _named(name: str, trajectories: Sequence[Trajectory]) -> Group:
    for place, trajectory in enumerate(trajectories):
        trajectory.id = name if len(trajectories) == 1 else f"{name}/{place}"
    return Group(id=name, trajectories=list(trajectories))


def _require_fits(turns: Sequence[Turn], room: int | None) -> None:
    longest = longest_sequence(turns)
    if room is not None and longest > room:
        raise ValueError(f"it has {longest} tokens but the model has room for {room}; shorten it or remove it")


def _fixable(error: ValueError | TemplateError, form: str) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON ({error.msg.removesuffix(' at')} at column {error.colno}); write {form}"
    if isinstance(error, TemplateError):
        return f"the chat template refuses it ({error}); leave that role out, or set model.template"
    return str(error)
