"""Disk errors and safe writes: one error that names the fix, and files that are complete or absent."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

DRAFT = ".draft"
"""Suffix of everything that is not complete yet."""

_FIXES = {
    errno.ENOSPC: "free some disk space",
    errno.EDQUOT: "free some of your disk quota",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EACCES: "choose a folder that you can write to, or change its permissions",
    errno.EPERM: "choose a folder that you can write to, or change its permissions",
    errno.EROFS: "choose a folder on a disk that can be written to",
    errno.ENOTDIR: "a file is in the place of a folder; move it, or choose another path",
    errno.EEXIST: "a file is in the place of a folder; move it, or choose another path",
    errno.ENOENT: "check the path",
}


class RunFolderError(ValueError):
    """A run folder cannot be written or read; the message names the path, the cause and the fix."""


@contextmanager
def explained(action: str, path: Path) -> Iterator[None]:
    """Turn a disk error into one sentence: `cannot write runs/a: No space left on device; free some …`."""
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
    """Wait until a file's content, or a folder's entries, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name and rename it, so that readers only ever see all of it."""
    draft = draft_of(path)
    with explained("write", path):
        try:
            with draft.open("xb") as file:
                file.write(content)
            sync(draft)
            draft.replace(path)
            sync(path.parent)
        finally:
            draft.unlink(missing_ok=True)


def draft_of(path: Path) -> Path:
    """A unique name next to the path for a file that is not complete yet."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{DRAFT}")


def remove_drafts(folder: Path, *, of: str = "*") -> None:
    """Remove what a killed writer left in a folder. Only for its single writer: it may be writing a draft."""
    for draft in folder.glob(f"{of}{DRAFT}"):
        if draft.is_dir() and not draft.is_symlink():
            shutil.rmtree(draft)
        else:
            draft.unlink()


def open_plain(path: Path) -> BufferedReader:
    """Open a file for reading; reject anything else, because a pipe may block forever and a device never ends."""
    if path.exists() and not path.is_file():
        raise RunFolderError(f"{path} is not a plain file; remove it, or restore the file")
    return path.open("rb")


def require_own(path: Path) -> None:
    """Raise if a path leads a writer elsewhere: a link, or a pipe or device in place of a file."""
    if path.is_symlink():
        raise RunFolderError(
            f"{path} is a link, and a run writes and deletes in its own folder only; replace it by its target"
        )
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise RunFolderError(f"{path} is neither a plain file nor a folder; remove it")
