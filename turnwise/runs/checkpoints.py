"""Checkpoints: folders that are complete or ignored, whatever happens while they are written."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from turnwise.ranks import ALONE, Ranks
from turnwise.runs.disk import DRAFT, RunFolderError, explained, open_plain, remove_drafts, sync, write_whole
from turnwise.runs.journal import Mark

FOLDER = "checkpoints"
ADAPTER = "adapter"
"""Where a checkpoint of a policy with LoRA has its adapter in peft's layout."""
MANIFEST, JOURNALS = "manifest.json", "journals.json"


class Checkpoints:
    """The checkpoints of a run: `checkpoints.write(120, fill)`, then `checkpoints.latest()`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(
        self,
        step: int,
        fill: Callable[[Path], None],
        journals: Mapping[str, Mark] | None = None,
        *,
        ranks: Ranks = ALONE,
    ) -> Path:
        """Let `fill` write into a draft, seal it with a manifest and rename it; a failure leaves the others untouched.

        `journals` are the current positions of the run's journals, so that a resumed run can return to them. Every rank
        calls this and may fill in files; rank 0 does the rest. If one fails, all raise.
        """
        target = self.path(step)
        draft = target.with_name(target.name + DRAFT)
        first = ranks.rank == 0
        try:
            _all_or_none(ranks, target, lambda: self._open(draft) if first else None)
            _all_or_none(ranks, target, lambda: fill(draft))
            _all_or_none(ranks, target, lambda: self._close(draft, target, step, journals) if first else None)
        finally:
            if first:
                shutil.rmtree(draft, ignore_errors=True)
        return target

    def _open(self, draft: Path) -> None:
        self.clean()
        draft.mkdir(parents=True)

    def _close(self, draft: Path, target: Path, step: int, journals: Mapping[str, Mark] | None) -> None:
        if journals is not None:
            (draft / JOURNALS).write_text(json.dumps(journals, indent=1))
        _seal(draft, step)
        replaced = _move_aside(target)
        draft.rename(target)
        sync(self.folder)
        shutil.rmtree(replaced, ignore_errors=True)

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, complete or not, oldest first."""
        if not self.folder.is_dir():
            return []
        names = (re.fullmatch(r"step_(\d{6,})", path.name) for path in self.folder.iterdir())
        return sorted(int(name[1]) for name in names if name)

    def latest(self) -> Path | None:
        """The newest complete checkpoint; broken ones are skipped with a warning."""
        for step in reversed(self.steps()):
            fault = find_fault(self.path(step))
            if not fault:
                return refuse_strays(self.path(step))
            warnings.warn(f"checkpoint {self.path(step)} is skipped: {fault}", stacklevel=2)
        return None

    def at(self, step: int) -> Path:
        """The checkpoint of one step, which must be complete."""
        return require_whole(self.path(step))

    def find(self, step: int) -> Path | None:
        """The checkpoint of one step; None if it is missing or incomplete."""
        path = self.path(step)
        return refuse_strays(path) if path.is_dir() and not find_fault(path) else None

    def has_journals(self, step: int) -> bool:
        """Whether the checkpoint of a step still has the positions of the run's journals."""
        return not find_fault(self.path(step), only=JOURNALS)

    def journals(self, step: int) -> dict[str, Mark]:
        """The positions of the run's journals when the checkpoint of a step was written."""
        if fault := find_fault(self.path(step), only=JOURNALS):
            raise RunFolderError(f"cannot load {self.path(step)}: {fault}")
        return {name: Mark(**mark) for name, mark in _read_mapping(self.path(step) / JOURNALS).items()}

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
        """Remove what a killed writer left behind. Only for the run's single writer: it may be writing a draft."""
        remove_drafts(self.folder)

    def path(self, step: int) -> Path:
        """The path of a step's checkpoint, whether or not it exists."""
        return self.folder / f"step_{step:06d}"


def find_fault(checkpoint: Path, *, only: str | None = None) -> str:
    """What is wrong with a checkpoint, or only with one of its files; empty if every byte is as written."""
    try:
        manifest = _read_mapping(checkpoint / MANIFEST)
        if manifest["step"] != step_of(checkpoint):
            return f"its manifest belongs to step {manifest['step']}"
        if not manifest["files"]:
            return f"{MANIFEST} lists no files"
        files = manifest["files"] if only is None else {only: manifest["files"][only]}
        for name, written in files.items():
            if name.startswith("/") or ".." in name.split("/"):
                return f"{MANIFEST} is damaged"
            if _describe(checkpoint / name) != written:
                return f"{name} has changed since it was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(checkpoint)} is missing"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except RunFolderError as error:
        return str(error)
    except (KeyError, TypeError, AttributeError, ValueError):
        return f"{MANIFEST} is damaged"
    return ""


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint inside its run; a copy elsewhere is a model like any other."""
    return folder.parent.name == FOLDER and (folder / MANIFEST).is_file()


def step_of(checkpoint: Path) -> int:
    """The step after which it was written."""
    return int(checkpoint.name.removeprefix("step_"))


def policy_folder(checkpoint: Path, policy: str) -> Path:
    """Where a checkpoint has a policy: in a folder of that name where several learn, else in its own."""
    return checkpoint / policy if (checkpoint / policy).is_dir() else checkpoint


def require_whole(checkpoint: Path) -> Path:
    """The checkpoint in a folder, if every byte is as written and nothing was added."""
    fault = find_fault(checkpoint) if checkpoint.is_dir() else "there is no such checkpoint"
    if fault:
        siblings = Checkpoints(checkpoint.parent)
        others = ", ".join(str(step) for step in siblings.steps() if siblings.path(step) != checkpoint) or "none"
        raise RunFolderError(f"cannot load {checkpoint}: {fault}; other checkpoints here: {others}")
    return refuse_strays(checkpoint)


def refuse_strays(checkpoint: Path) -> Path:
    """Raise if the checkpoint has a file that its manifest does not list: loaders would read it too."""
    listed = _read_mapping(checkpoint / MANIFEST)["files"]
    for path in checkpoint.rglob("*"):
        name = path.relative_to(checkpoint).as_posix()
        # No loader reads hidden files, and file browsers leave them everywhere.
        known = name in listed or name == MANIFEST or any(part.startswith(".") for part in PurePosixPath(name).parts)
        if not known and (path.is_symlink() or not path.is_dir()):
            raise RunFolderError(f"{path} is not part of its checkpoint ({MANIFEST} does not list it); remove it")
    return checkpoint


def _read_mapping(path: Path) -> dict[str, Any]:
    with open_plain(path) as file:
        try:
            content = json.loads(file.read())
        except (ValueError, RecursionError):
            content = None
    if not isinstance(content, dict):
        raise RunFolderError(f"{path.name} is damaged")
    return content


def _all_or_none(ranks: Ranks, target: Path, work: Callable[[], None]) -> None:
    """Work on every rank; a disk error of one is raised by all."""
    mine = None
    try:
        with explained("write", target):
            work()
    except RunFolderError as error:
        mine = error
    failed = [text for text in ranks.gather(mine and str(mine)) if text]
    if failed:
        raise mine or RunFolderError(failed[0])


def _seal(draft: Path, step: int) -> None:
    """Sync every file to disk, then write the manifest with their digests."""
    paths = sorted(draft.rglob("*"))
    for path in paths:
        sync(path)
    files = {path.relative_to(draft).as_posix(): _describe(path) for path in paths if path.is_file()}
    write_whole(draft / MANIFEST, json.dumps({"step": step, "files": files}, indent=1).encode())


def _describe(path: Path) -> dict[str, Any]:
    with open_plain(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}


def _move_aside(path: Path) -> Path:
    """Rename a checkpoint that is to be removed to a draft, so that no part of it is taken for a checkpoint."""
    aside = path.with_name(f"{path.name}.old{DRAFT}")
    if path.exists():
        path.rename(aside)
    return aside
