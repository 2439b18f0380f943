"""Journals: files that only grow, one JSON object a line. A line counts once its newline is there."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from turnwise.runs.disk import RunFolderError, explained, sync

_BLOCK = 65536


class Journal:
    """One journal of a run: `Journal(path).append({"step": 1, "loss/policy": 0.3})`. It has one writer at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a line and hand it to the operating system. JSON knows no NaN: what is not finite becomes null."""
        line = json.dumps(plain(row, lambda _: None)).encode() + b"\n"
        with explained("write", self.path), self.path.open("a+b") as file:
            end = _end_of_lines(file)
            if end < file.seek(0, os.SEEK_END):  # a line that was cut off would swallow this one
                file.truncate(end)
            file.write(line)

    @property
    def size(self) -> int:
        """Bytes of whole lines."""
        if not self.path.exists():
            return 0
        with explained("read", self.path), self.path.open("rb") as file:
            return _end_of_lines(file)

    def sync(self) -> None:
        """Wait until every line has reached the disk."""
        if self.path.exists():
            with explained("write", self.path):
                sync(self.path)

    def check(self, size: int) -> None:
        """Raise unless the first `size` bytes are whole lines of this journal."""
        if self.size < size:
            raise RunFolderError(
                f"{self.path} has {self.size} bytes of whole lines, but the checkpoint was written when it had {size}; "
                "put the file back as it was, or resume from an earlier checkpoint"
            )
        if size and self._byte(size - 1) != b"\n":
            raise RunFolderError(
                f"{self.path} has no line that ends at byte {size}, where the checkpoint was written: it was edited; "
                "put the file back as it was, or resume from an earlier checkpoint"
            )

    def truncate(self, size: int) -> None:
        """Go back to the first `size` bytes."""
        self.check(size)
        if self.path.exists():
            with explained("write", self.path):
                os.truncate(self.path, size)

    def _byte(self, place: int) -> bytes:
        with explained("read", self.path), self.path.open("rb") as file:
            file.seek(place)
            return file.read(1)


def read_journal(path: Path) -> list[dict[str, Any]]:
    """All rows; none when there is no such file yet. A last line that was cut off is left out."""
    if not path.exists():
        return []
    with explained("read", path):
        lines = path.read_bytes().split(b"\n")[:-1]
    return [_row(path, number, line) for number, line in enumerate(lines, start=1)]


def plain(value: Any, non_finite: Callable[[float], Any]) -> Any:
    """The value in JSON's own types: arrays as lists, `non_finite(number)` for NaN and infinities, else its repr."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else non_finite(float(value))
    if isinstance(value, list | tuple):
        return [plain(item, non_finite) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain(item, non_finite) for key, item in value.items()}
    to_list = getattr(value, "tolist", None)  # arrays, tensors and their scalars
    return plain(to_list(), non_finite) if callable(to_list) else describe(value)


def describe(value: Any) -> str:
    """Its repr without the address, which no second run would repeat."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise RunFolderError(f"line {number} of {path} is not a JSON object; remove the line, or restore the file")
    return row


def _end_of_lines(file: BinaryIO) -> int:
    """Where the last whole line ends: after the last newline."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _BLOCK)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
