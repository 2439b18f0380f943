"""Checkpoints: folders that are whole or do not count, whatever happens while they are written."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from turnwise.runs.disk import DRAFT, RunFolderError, explained, sync, write_whole

MANIFEST = "manifest.json"


class Checkpoints:
    """The checkpoints of a run: `checkpoints.write(120, fill)`, then `checkpoints.latest()`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, step: int, fill: Callable[[Path], None]) -> Path:
        """Let `fill` write into a draft, seal it with a manifest and rename it; a failure leaves the others alone."""
        target = self.path(step)
        draft = target.with_name(target.name + DRAFT)
        with explained("write", target):
            self.clean()
            draft.mkdir(parents=True)
            try:
                fill(draft)
                _seal(draft, step)
                replaced = _move_aside(target)
                draft.rename(target)
                sync(self.folder)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
            shutil.rmtree(replaced, ignore_errors=True)
        return target

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, whole or not, oldest first."""
        if not self.folder.is_dir():
            return []
        names = (re.fullmatch(r"step_(\d{6,})", path.name) for path in self.folder.iterdir())
        return sorted(int(name[1]) for name in names if name)

    def latest(self) -> Path | None:
        """The newest checkpoint that is whole; broken ones are passed over with a warning."""
        for step in reversed(self.steps()):
            fault = find_fault(self.path(step))
            if not fault:
                return self.path(step)
            warnings.warn(f"checkpoint {self.path(step)} is passed over: {fault}", stacklevel=2)
        return None

    def at(self, step: int) -> Path:
        """The checkpoint of one step, which must be whole."""
        path = self.path(step)
        fault = find_fault(path) if path.is_dir() else "there is no such checkpoint"
        if fault:
            others = ", ".join(str(other) for other in self.steps() if other != step) or "none"
            raise RunFolderError(f"cannot load {path}: {fault}; other checkpoints here: {others}")
        return path

    def prune(self, keep: int = 2, always: Collection[int] = ()) -> None:
        """Remove all but the newest `keep` and those of the steps in `always`."""
        steps = self.steps()
        for step in steps[: max(0, len(steps) - keep)]:
            if step not in always:
                self.remove(step)

    def remove(self, step: int) -> None:
        """Remove one checkpoint."""
        with explained("remove", self.path(step)):
            shutil.rmtree(_move_aside(self.path(step)))

    def clean(self) -> None:
        """Remove what a killed writer left behind. For the run's one writer only: a draft may be in the making."""
        for draft in self.folder.glob(f"*{DRAFT}"):
            shutil.rmtree(draft)

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step lies or would lie."""
        return self.folder / f"step_{step:06d}"


def find_fault(checkpoint: Path) -> str:
    """What is wrong with a checkpoint in words; empty when every byte is as it was written."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_bytes())
        if manifest["step"] != int(checkpoint.name.removeprefix("step_")):
            return f"its manifest is that of step {manifest['step']}"
        for name, written in manifest["files"].items():
            if _describe(checkpoint / name) != written:
                return f"{name} is not as it was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(checkpoint)} is missing"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is damaged"
    return ""


def _seal(draft: Path, step: int) -> None:
    """Bring every file to the disk, then the manifest that vouches for them."""
    paths = sorted(draft.rglob("*"))
    for path in paths:
        sync(path)
    files = {path.relative_to(draft).as_posix(): _describe(path) for path in paths if path.is_file()}
    write_whole(draft / MANIFEST, json.dumps({"step": step, "files": files}, indent=1).encode())


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}


def _move_aside(path: Path) -> Path:
    """Give a checkpoint that has to go a draft's name, so that no half of it is ever taken for a checkpoint."""
    aside = path.with_name(f"{path.name}.old{DRAFT}")
    if path.exists():
        path.rename(aside)
    return aside
