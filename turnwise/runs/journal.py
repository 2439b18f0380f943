"""Journals: files that only grow, one JSON object a line. A line counts once its newline is there."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

from turnwise.runs.disk import RunFolderError, explained, open_plain, sync
from turnwise.untrusted import shown

_BLOCK = 65536
_DEEPEST = 64
"""Levels of nesting that are written: fewer than any reader accepts."""
_INTEGER_BITS = 4096
"""Of the longest integer that is written as a number; Python refuses to read or write digits without end."""


class Mark(TypedDict):
    """Where a journal was when a checkpoint was written: its size, and the digest of all that it had by then."""

    bytes: int
    sha256: str


class Journal:
    """One journal of a run: `Journal(path).append({"step": 1, "loss/policy": 0.3})`. It has one writer at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest, self._digested = hashlib.sha256(), 0
        """Of the first bytes, and of how many: a long journal is not read again for every checkpoint."""

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
        with explained("read", self.path), open_plain(self.path) as file:
            return _end_of_lines(file)

    def mark(self) -> Mark:
        """Where the journal is, once every line has reached the disk: what a checkpoint keeps of it."""
        if self.path.exists():
            with explained("write", self.path):
                sync(self.path)
        size = self.size
        return {"bytes": size, "sha256": self._sha256(size)}

    def check(self, mark: Mark) -> None:
        """Raise unless the journal begins with the very bytes that it had at the mark."""
        size, whole = mark["bytes"], self.size
        if whole < size:
            raise RunFolderError(
                f"{self.path} has {whole} bytes of whole lines, but the checkpoint was written when it had {size}; "
                "put the file back as it was, or resume from an earlier checkpoint"
            )
        if self._sha256(size) != mark["sha256"]:
            raise RunFolderError(
                f"{self.path} is damaged or was edited: its first {size} bytes are not those that it had when the "
                "checkpoint was written; put the file back as it was, or resume from an earlier checkpoint"
            )

    def after(self, mark: Mark) -> list[dict[str, Any]]:
        """The rows that came after the mark; lines that are damaged are left out."""
        if not self.path.exists():
            return []
        with explained("read", self.path), open_plain(self.path) as file:
            file.seek(mark["bytes"])
            lines = file.read().split(b"\n")[:-1]
        return [row for row in map(_parse, lines) if row is not None]

    def truncate(self, mark: Mark) -> None:
        """Go back to the mark."""
        self.check(mark)
        if self.path.exists():
            with explained("write", self.path):
                os.truncate(self.path, mark["bytes"])

    def _sha256(self, size: int) -> str:
        """The digest of the first `size` bytes, of which only those are read that are new."""
        if size < self._digested:
            self._digest, self._digested = hashlib.sha256(), 0
        if size > self._digested:
            with explained("read", self.path), open_plain(self.path) as file:
                file.seek(self._digested)
                while self._digested < size and (block := file.read(min(_BLOCK, size - self._digested))):
                    self._digest.update(block)
                    self._digested += len(block)
        return self._digest.hexdigest()


def read_journal(path: Path, fields: Mapping[str, type] | None = None) -> list[dict[str, Any]]:
    """All rows; none when there is no such file yet. A last line that was cut off is left out.

    `fields` are what the reader goes by: `{"step": int}` refuses the journal where a line has no such thing.
    """
    if not path.exists():
        return []
    with explained("read", path), open_plain(path) as file:
        lines = file.read().split(b"\n")[:-1]
    return [_row(path, number, line, fields or {}) for number, line in enumerate(lines, start=1)]


def plain(value: Any, non_finite: Callable[[float], Any], *, depth: int = 0) -> Any:
    """The value in JSON's own types: arrays as lists, `non_finite(number)` for NaN and infinities, else its repr.

    Raises RecursionError for what is nested deeper than any reader need follow, and for what holds itself.
    """
    if depth > _DEEPEST:
        raise RecursionError(f"nested deeper than {_DEEPEST} levels")
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _INTEGER_BITS else shown(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else non_finite(float(value))
    if isinstance(value, list | tuple):
        return [plain(item, non_finite, depth=depth + 1) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain(item, non_finite, depth=depth + 1) for key, item in value.items()}
    to_list = getattr(value, "tolist", None)  # arrays, tensors and their scalars
    return plain(to_list(), non_finite, depth=depth + 1) if callable(to_list) else shown(value)


def _row(path: Path, number: int, line: bytes, fields: Mapping[str, type]) -> dict[str, Any]:
    row = _parse(line)
    if row is None:
        raise RunFolderError(f"line {number} of {path} is not a JSON object; remove the line, or restore the file")
    if missing := [name for name, kind in fields.items() if not isinstance(row.get(name), kind)]:
        raise RunFolderError(f"line {number} of {path} has no valid {missing[0]}; remove the line, or restore the file")
    return row


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


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
