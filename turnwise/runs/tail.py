"""Follow a journal while a run writes it: only what is new is read, and a journal that was rewound is noticed."""

from __future__ import annotations

import os
import stat
import zlib
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnwise.runs.journal import parse_line

_MOST_BYTES = 8 * 2**20
"""Read at one look; the next look goes on there. A longer line counts as damaged."""
_LARGEST_STEP = 2**53
"""Browsers know no larger integers."""
_END = 256
"""Bytes before the place reached that are compared at every look."""


@dataclass(kw_only=True, slots=True)
class Gain:
    """What a look at a journal brought. With `anew`, all that was read before is void."""

    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    anew: bool = False


class JournalTail:
    """A journal as far as it has been read: `gain = JournalTail(path).look()`, again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changed = 0.0
        """When the file was last written to; 0 while there is none."""
        self._file: int | None = None
        """The file's own number; None while there is none."""
        self._seen: tuple[int, int] | None = None
        """Its size and time when it was read to its end."""
        self._forget()

    def look(self) -> Gain | None:
        """What is new; None if nothing is. A journal that was shortened, replaced or removed starts anew."""
        try:
            found = self.path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise FileNotFoundError
            seen = (found.st_size, found.st_mtime_ns)
            if found.st_ino == self._file and seen == self._seen:
                return None
            gain, complete = self._read(anew=self._file not in (None, found.st_ino))
        except OSError:
            return self._lost()
        self.changed, self._file, self._seen = found.st_mtime, found.st_ino, seen if complete else None
        return gain if gain.rows or gain.anew else None

    def restart(self) -> None:
        """Read everything again at the next look, and say so."""
        if self._file is not None:
            self._file = -1

    @property
    def is_complete(self) -> bool:
        """Whether the last look read all there was; otherwise look again at once."""
        return self._file is None or self._seen is not None

    @property
    def position(self) -> tuple[int, int]:
        """How many rows have been read, and a check sum of the bytes up to there."""
        return len(self._sums), self._sums[-1] if self._sums else 0

    def begins_with(self, rows: int, check: int) -> bool:
        """Whether the first rows are those that somebody else read, who was at this position."""
        return rows <= len(self._sums) and (self._sums[rows - 1] if rows else 0) == check

    def _forget(self) -> None:
        self._offset, self._sum, self._end = 0, 0, b""
        self._sums = array("I")
        """The check sum after each row."""
        self.damaged = 0
        """Lines that are no rows."""

    def _lost(self) -> Gain | None:
        had = self._file is not None
        self._file, self._seen, self.changed = None, None, 0.0
        self._forget()
        return Gain(anew=True) if had else None

    def _read(self, *, anew: bool) -> tuple[Gain, bool]:
        """What is new, and whether that is all there is."""
        with self.path.open("rb") as file:
            anew = anew or not self._goes_on(file)
            if anew:
                self._forget()
            file.seek(self._offset)
            content = file.read(_MOST_BYTES)
        complete = len(content) < _MOST_BYTES
        whole = content.rfind(b"\n") + 1
        if not whole and not complete:
            whole, self.damaged = len(content), self.damaged + 1
            self._sum = zlib.crc32(content, self._sum)
        rows = [row for line in content[:whole].split(b"\n")[:-1] if (row := self._row(line)) is not None]
        self._offset += whole
        self._end = (self._end + content[max(0, whole - _END) : whole])[-_END:]
        return Gain(rows=rows, anew=anew), complete

    def _goes_on(self, file: Any) -> bool:
        if file.seek(0, os.SEEK_END) < self._offset:
            return False
        file.seek(self._offset - len(self._end))
        return file.read(len(self._end)) == self._end

    def _row(self, line: bytes) -> dict[str, Any] | None:
        self._sum = zlib.crc32(b"\n", zlib.crc32(line, self._sum))
        row = parse_line(line)
        if row is None or type(step := row.get("step")) is not int or abs(step) > _LARGEST_STEP:
            self.damaged += 1
            return None
        self._sums.append(self._sum)
        return row
