"""Journals: append-only files with one JSON object per line. A line counts once its newline is written."""

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
"""Maximum nesting that is written: fewer levels than any reader accepts."""
_INTEGER_BITS = 4096
"""Bits of the longest integer written as a number; Python limits how many digits it converts."""


class Mark(TypedDict):
    """Position of a journal when a checkpoint was written: its size, and the digest of its content so far."""

    bytes: int
    sha256: str


class Journal:
    """One journal of a run: `Journal(path).append({"step": 1, "loss/policy": 0.3})`. Only one writer at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest, self._digested = hashlib.sha256(), 0
        """Digest of the first bytes, and their number: a long journal is not read again for every checkpoint."""

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a line and flush it to the operating system. JSON has no NaN: non-finite numbers become null."""
        line = json.dumps(plain(row, lambda _: None)).encode() + b"\n"
        with explained("write", self.path), self.path.open("a+b") as file:
            end = _end_of_lines(file)
            if end < file.seek(0, os.SEEK_END):  # a truncated line would merge with this one
                file.truncate(end)
            file.write(line)

    @property
    def size(self) -> int:
        """Size in bytes of the complete lines."""
        if not self.path.exists():
            return 0
        with explained("read", self.path), open_plain(self.path) as file:
            return _end_of_lines(file)

    def mark(self) -> Mark:
        """The position of the journal once every line is on disk: what a checkpoint stores."""
        if self.path.exists():
            with explained("write", self.path):
                sync(self.path)
        size = self.size
        return {"bytes": size, "sha256": self._sha256(size)}

    def check(self, mark: Mark) -> None:
        """Raise unless the journal still begins with the same bytes as at the mark."""
        size, whole = mark["bytes"], self.size
        if whole < size:
            raise RunFolderError(
                f"{self.path} has {whole} bytes of complete lines, but the checkpoint was written when it had {size}; "
                "restore the file, or resume from an earlier checkpoint"
            )
        if self._sha256(size) != mark["sha256"]:
            raise RunFolderError(
                f"{self.path} is damaged or was edited: its first {size} bytes have changed since the "
                "checkpoint was written; restore the file, or resume from an earlier checkpoint"
            )

    def after(self, mark: Mark) -> list[dict[str, Any]]:
        """The rows after the mark, without damaged lines."""
        if not self.path.exists():
            return []
        with explained("read", self.path), open_plain(self.path) as file:
            file.seek(mark["bytes"])
            lines = file.read().split(b"\n")[:-1]
        return [row for row in map(parse_line, lines) if row is not None]

    def truncate(self, mark: Mark) -> None:
        """Go back to the mark."""
        self.check(mark)
        if self.path.exists():
            with explained("write", self.path):
                os.truncate(self.path, mark["bytes"])

    def _sha256(self, size: int) -> str:
        """The digest of the first `size` bytes; reads only the new ones."""
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
    """All rows; none if the file does not exist. A truncated last line is left out.

    `fields` are the required fields: `{"step": int}` rejects a journal in which a line lacks it.
    """
    if not path.exists():
        return []
    with explained("read", path), open_plain(path) as file:
        lines = file.read().split(b"\n")[:-1]
    return [_row(path, number, line, fields or {}) for number, line in enumerate(lines, start=1)]


def plain(value: Any, non_finite: Callable[[float], Any], *, depth: int = 0) -> Any:
    """The value in JSON's own types: arrays as lists, `non_finite(number)` for NaN and infinities, otherwise its repr.

    Raises RecursionError for values nested too deep for readers, and for values that contain themselves.
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
    row = parse_line(line)
    if row is None:
        raise RunFolderError(f"line {number} of {path} is not a JSON object; remove the line, or restore the file")
    if missing := [name for name, kind in fields.items() if not isinstance(row.get(name), kind)]:
        raise RunFolderError(f"line {number} of {path} has no valid {missing[0]}; remove the line, or restore the file")
    return row


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The row of a line; None if it is not a JSON object."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _end_of_lines(file: BinaryIO) -> int:
    """Where the last complete line ends: after the last newline."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _BLOCK)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
