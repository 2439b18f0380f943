"""The ledger: the exact trajectories of a step, one per line of compressed JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import zstandard

from turnwise.runs.disk import RunFolderError, explained, open_plain, write_whole
from turnwise.runs.journal import plain
from turnwise.types import Group, StopReason, Trajectory, Turn
from turnwise.untrusted import shown

_BLOCK = 2048
"""Compressed bytes expanded at once; they expand at most 32,768-fold."""
_ROOM, _RATIO = 256 * 2**20, 200
"""A ledger may expand to this many bytes plus this many times its size: far more than episodes need."""
_NON_FINITE = "non-finite"


def write_groups(path: Path, groups: Iterable[Group]) -> None:
    """Write a step's groups, completely or not at all. A group without trajectories writes no line."""
    # Level 1: decimal numbers gain nothing from a longer search.
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=True).compressobj()
    parts: list[bytes] = []
    for group in groups:
        for member, trajectory in enumerate(group.trajectories):
            parts.append(compressor.compress(_line({**_place(group, member), **_columns(trajectory)})))
        # One block per group: in a truncated file, the groups before the cut can still be read.
        parts.append(compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
    write_whole(path, b"".join([*parts, compressor.flush()]))


def read_groups(path: Path) -> list[Group]:
    """The groups as written; every sequence comes back as a list."""
    groups: list[Group] = []
    for row in list(_rows(path, whole=True)):  # the checksum comes last: trust nothing before it
        name, member, task_id = row.pop("group"), row.pop("member"), row.pop("task_id", "")
        if member == 0:
            groups.append(Group(id=name, trajectories=[], task_id=task_id))
        groups[-1].trajectories.append(_trajectory(row))
    return groups


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The lines: a trajectory's fields with its `group` and `member`. Of a truncated file, those before the cut."""
    return _rows(path, whole=False)


def _place(group: Group, member: int) -> dict[str, Any]:
    """Which line of which group it is; what a task is called need not be said where the group has its name."""
    task = {} if group.task_id == group.id else {"task_id": group.task_id}
    return {"group": group.id, "member": member, **task}


def _columns(trajectory: Trajectory) -> dict[str, Any]:
    row = _fields(trajectory)
    row["turns"] = [_fields(turn) for turn in trajectory.turns]
    row["task"] = _loose(trajectory.task)
    for name in ("kwargs", "info"):
        row[name] = {_key(key): _loose(value) for key, value in getattr(trajectory, name).items()}
    return row


def _fields(item: Any) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__dataclass_fields__}


def _trajectory(row: Mapping[str, Any]) -> Trajectory:
    turns = [Turn(**turn) for turn in row["turns"]]
    return Trajectory(**{**row, "turns": turns, "stop": StopReason(row["stop"])})


def _loose(value: Any) -> Any:
    """Values from environments: anything, even objects that contain themselves or raise when inspected."""
    try:
        return plain(value, _mark)
    except Exception:  # the edge: a user's objects
        return shown(value)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(_loose(key))


def _line(row: dict[str, Any]) -> bytes:
    try:
        text = json.dumps(row, allow_nan=False, default=lambda value: plain(value, _mark))
    except ValueError:  # rare, so only then go through every token
        text = json.dumps(plain(row, _mark))
    return text.encode() + b"\n"


def _mark(number: float) -> dict[str, str]:
    """JSON has no NaN, and a ledger must not lose one."""
    return {_NON_FINITE: repr(number)}


def _unmark(item: dict[str, Any]) -> Any:
    return float(item[_NON_FINITE]) if item.keys() == {_NON_FINITE} else item


def _rows(path: Path, *, whole: bool) -> Iterator[dict[str, Any]]:
    for line in _lines(path, whole=whole):
        try:
            row = json.loads(line, object_hook=_unmark)
        except (ValueError, RecursionError) as error:
            raise _damage(path, error) from error
        yield row


def _lines(path: Path, *, whole: bool) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    parts: list[bytes] = []  # of a line that is not complete yet
    with explained("read", path), open_plain(path) as file:
        room = _ROOM + _RATIO * file.seek(0, os.SEEK_END)
        file.seek(0)
        while not decompressor.eof and (block := file.read(_BLOCK)):
            content = _expand(decompressor, block, path)
            room -= len(content)
            if room < 0:
                raise RunFolderError(f"{path} expands to more than a ledger of its size can hold; remove it")
            *lines, rest = content.split(b"\n")
            for line in lines:
                yield b"".join((*parts, line))
                parts = []
            parts.append(rest)
        if whole and not decompressor.eof:
            raise RunFolderError(f"{path} is truncated; copy it again, or choose another step")
        if whole and (decompressor.unused_data or file.read(1)):  # a damaged header denies its checksum
            raise _damage(path, ValueError("there is data after its end"))


def _expand(decompressor: zstandard.ZstdDecompressionObj, block: bytes, path: Path) -> bytes:
    try:
        return decompressor.decompress(block)
    except zstandard.ZstdError as error:
        raise _damage(path, error) from error


def _damage(path: Path, error: Exception) -> RunFolderError:
    return RunFolderError(f"{path} is damaged ({error}); copy it again, or choose another step")
