"""The final test of generated tasks: does the file tree hold what the truth on stdin asks for?

The text of this file is a task's `final_test`. It runs inside a sandbox after every episode, so it imports little, and
of the standard library alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def digest(content: bytes) -> str:
    """What stands for a file's content."""
    return hashlib.sha256(content).hexdigest()


def text(path: str, want: str) -> bool:
    """A file with these lines; a missing line break at its end is forgiven."""
    return Path(path).read_text(encoding="utf-8").rstrip("\n") == want.rstrip("\n")


def content(path: str, want: str) -> bool:
    """A plain file with this digest."""
    return not os.path.islink(path) and digest(Path(path).read_bytes()) == want


def absent(path: str) -> bool:
    """Nothing has this name."""
    return not os.path.lexists(path)


def folder(path: str, want: list[str]) -> bool:
    """A folder with exactly these entries."""
    return sorted(os.listdir(path)) == sorted(want)


def mode(path: str, want: str) -> bool:
    """Permission bits, in octal."""
    return f"{os.stat(path).st_mode & 0o777:03o}" == want


def link(path: str, want: str) -> bool:
    """A symbolic link that leads to this file."""
    return os.path.islink(path) and os.path.realpath(path) == os.path.realpath(want)


def archive(path: str, want: dict[str, str]) -> bool:
    """A tar file, compressed or not, with these files (digests by name) and no other."""
    import tarfile

    with tarfile.open(path) as opened:
        found = {each.name: opened.extractfile(each) for each in opened.getmembers() if each.isfile()}
        return {os.path.normpath(name): digest(file.read()) for name, file in found.items() if file} == want


def compressed(path: str, want: str) -> bool:
    """A gzip file of this text."""
    import gzip

    with gzip.open(path, "rt", encoding="utf-8") as opened:
        return opened.read().rstrip("\n") == want.rstrip("\n")


def document(path: str, want: Any) -> bool:
    """A JSON file with this value."""
    return json.loads(Path(path).read_text(encoding="utf-8")) == want


def rows(path: str, query: str, want: list[list[Any]]) -> bool:
    """An SQLite database that answers a query so."""
    import sqlite3

    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return [list(row) for row in database.execute(query)] == want
    finally:
        database.close()


def git(path: str, ask: list[str], want: str) -> bool:
    """A repository that answers a git command so.

    The agent's settings could name programs that git runs, and those could read the truth. So this copy of the
    repository loses its settings, and no others are read.
    """
    import subprocess

    folder = os.path.join(path, ".git")
    settings = Path(folder, "config")
    settings.unlink(missing_ok=True)
    settings.write_text("[core]\n\trepositoryformatversion = 0\n\tbare = false\n", encoding="utf-8")
    fixed = {"GIT_DIR": folder, "GIT_COMMON_DIR": folder, "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent"}
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **fixed}
    asked = subprocess.run(
        ["git", *ask], cwd=path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20
    )
    return asked.stdout.strip() == want


KINDS: dict[str, Callable[..., bool]] = {
    each.__name__: each
    for each in (text, content, absent, folder, mode, link, archive, compressed, document, rows, git)
}


def main() -> int:
    """0 if every check of the truth holds; names the first that does not."""
    checks = json.load(sys.stdin)["checks"]
    for check in checks:
        arguments = dict(check)
        kind = arguments.pop("kind")
        try:
            holds = KINDS[kind](**arguments)
        except Exception as error:  # whatever an agent left there: it is not what was asked for
            print(f"{kind} {arguments['path']}: {type(error).__name__}")
            return 1
        if not holds:
            print(f"{kind} {arguments['path']}: not as asked")
            return 1
    return 0 if checks else 1


if __name__ == "__main__":
    sys.exit(main())
