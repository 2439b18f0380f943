"""What a disk can do to a run: one error with the fix in it, and writes that are whole or absent."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DRAFT = ".draft"
"""Ending of everything that is not whole yet."""

_FIXES = {
    errno.ENOSPC: "free some disk space",
    errno.EDQUOT: "free some of your disk quota",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EACCES: "choose a folder that you may write to, or change its permissions",
    errno.EPERM: "choose a folder that you may write to, or change its permissions",
    errno.EROFS: "choose a folder on a disk that can be written to",
    errno.ENOTDIR: "a file lies where a folder is needed: move it, or choose another path",
    errno.EEXIST: "a file lies where a folder is needed: move it, or choose another path",
    errno.ENOENT: "check the path",
}


class RunFolderError(ValueError):
    """A run folder cannot be written or read; the message names the path, the cause and the fix."""


@contextmanager
def explained(action: str, path: Path) -> Iterator[None]:
    """Let an error of the disk leave as one sentence: `cannot write runs/a: No space left on device; free some …`."""
    try:
        yield
    except Exception as error:  # writers in Rust (safetensors, tokenizers) raise bare exceptions that quote the number
        quoted = re.search(r"\(os error (\d+)\)", str(error))
        if not quoted and not isinstance(error, OSError):
            raise
        number = int(quoted[1]) if quoted else getattr(error, "errno", None)
        cause = os.strerror(number) if number else str(error)
        fix = _FIXES.get(number or 0, "check that the disk works and that the path is right")
        raise RunFolderError(f"cannot {action} {path}: {cause}; {fix}") from error


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, has reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name and rename it: whoever finds it, finds all of it."""
    draft = path.with_name(path.name + DRAFT)
    with explained("write", path):
        try:
            draft.write_bytes(content)
            sync(draft)
            draft.replace(path)
            sync(path.parent)
        finally:
            draft.unlink(missing_ok=True)
