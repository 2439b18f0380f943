"""The run folder: everything that a run writes."""

from __future__ import annotations

import errno
import fcntl
import glob
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from turnwise.runs.checkpoints import FOLDER, Checkpoints
from turnwise.runs.disk import (
    DRAFT,
    RunFolderError,
    draft_of,
    explained,
    remove_drafts,
    require_own,
    sync,
    write_whole,
)
from turnwise.runs.journal import Journal, Mark, read_journal
from turnwise.runs.settings import CONFIG, META, read_config, read_meta, runs_meant, to_json, to_yaml
from turnwise.trust import SIGNATURE, sign

Kind = TypeVar("Kind")
JOURNALS = ("metrics", "turns", "events", "evals")
_HISTORY = "history"
_OTHERS = ("rollouts", "checkpoints", "sft", "tensorboard", "wandb")
"""The folders that a run writes to."""
_ABANDONED = 3600
"""Age in seconds at which the draft of a new run counts as left by a killed command: making one is quick."""


class RunFolder:
    """A run on disk: `RunFolder.create("runs/geo", config, meta)` starts it, `RunFolder.open("runs/geo")` reads it."""

    def __init__(self, path: Path, config: dict[str, Any], meta: dict[str, Any]) -> None:
        self.path, self.config, self.meta = path, config, meta
        self.metrics, self.turns, self.events, self.evals = (Journal(path / f"{name}.jsonl") for name in JOURNALS)
        self.history = Journal(path / f"{_HISTORY}.jsonl")
        """Every command that started or resumed the run, with its recipe and step; never rewound."""
        self.checkpoints = Checkpoints(path / FOLDER)

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, Any], meta: Mapping[str, Any]) -> RunFolder:
        """Start a run in a new or empty folder. The folder appears complete with its config, or not at all."""
        path = Path(path)
        draft = draft_of(path.with_name(f".{path.name}"))
        with explained("create", path):
            _refuse_content(path)
            _remove_abandoned(path)
            try:
                for name in ("rollouts", "checkpoints"):
                    (draft / name).mkdir(parents=True)
                for name in (*JOURNALS, _HISTORY):
                    (draft / f"{name}.jsonl").touch()
                _write_config(draft, config)
                write_whole(draft / META, to_json(meta))
                _move_into_place(draft, path)
                sync(path.parent)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open a run that exists."""
        path = Path(path)
        if not (path / META).is_file():
            fix = runs_meant(path) or "give a folder that `turnwise train` made"
            raise RunFolderError(f"{path} is not a run folder (it has no {META}); {fix}")
        return cls(path, meta=read_meta(path / META), config=read_config(path / CONFIG))

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Be the run's only writer until the block or the process ends, however it ends; reject a second writer.

        Nothing in the folder may lead a writer out of it. Leftovers of a killed writer are removed.
        """
        self._require_own()
        with explained("write", self.path):
            lock = (self.path / "lock").open("a")
        with lock:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock, forks do not inherit it
            except OSError as error:
                raise RunFolderError(
                    f"{self.path} is being written by another process; wait until it is done, or stop it first"
                ) from error
            with explained("clean", self.path):
                remove_drafts(self.path, of=f"{CONFIG}.*")  # other drafts in this folder may be the user's
                remove_drafts(self.path / "rollouts")
                self.checkpoints.clean()
            yield

    def begin(self, config: Mapping[str, Any], *, command: Sequence[str] = (), changes: Sequence[str] = ()) -> None:
        """A command starts the run at its first step with this config."""
        self._remember("started", 0, config, command=list(command), changes=list(changes))

    def carry_on(
        self, step: int, config: Mapping[str, Any], *, command: Sequence[str] = (), changes: Sequence[str] = ()
    ) -> None:
        """A command resumes the run from the checkpoint of `step` with this config; later steps are undone."""
        self._check(self.checkpoints.journals(step))
        undone = self.undone(step)
        self._remember("resumed", step, config, command=list(command), changes=list(changes), undone=undone)
        self.rewind(step)

    def undone(self, step: int) -> list[dict[str, Any]]:
        """The events after the checkpoint of a step, which a command that resumes from it undoes."""
        return self.events.after(self.checkpoints.journals(step)["events"])

    def config_at(self, step: int) -> dict[str, Any]:
        """The config that a step was trained with: that of the last command that resumed the run before it."""
        began: list[dict[str, Any]] = []
        for row in read_journal(self.history.path, {"step": int, "recipe": dict}):
            began = [*(each for each in began if each["step"] < row["step"]), row]  # the rest was undone
        return next((row["recipe"] for row in reversed(began) if row["step"] < step), self.config)

    def circumstance(self, name: str, kind: type[Kind]) -> Kind:
        """A field of meta.json; RunFolderError if it is missing or has the wrong type."""
        value = self.meta.get(name)
        if not isinstance(value, kind):
            raise RunFolderError(f"{self.path / META} is damaged: {name} is {value!r}; restore the file")
        return value

    @property
    def journals(self) -> dict[str, Journal]:
        """The four journals by name."""
        return dict(zip(JOURNALS, (self.metrics, self.turns, self.events, self.evals), strict=True))

    def rollouts_file(self, step: int) -> Path:
        """File with the trajectories of a step."""
        return self.path / "rollouts" / f"step_{step:06d}.jsonl.zst"

    def tokens_file(self, step: int) -> Path:
        """File with what a step did to every sampled token."""
        return self.path / "rollouts" / f"tokens_{step:06d}.jsonl.zst"

    def evaluation_file(self, step: int) -> Path:
        """File with some of the held-out episodes played after a step."""
        return self.path / "rollouts" / f"eval_{step:06d}.jsonl.zst"

    def rollout_steps(self) -> list[int]:
        """Steps with recorded trajectories, oldest first."""
        return self._steps_of("step")

    def token_steps(self) -> list[int]:
        """Steps with recorded token data, oldest first."""
        return self._steps_of("tokens")

    def evaluation_steps(self) -> list[int]:
        """Steps with recorded held-out episodes, oldest first."""
        return self._steps_of("eval")

    def marks(self) -> dict[str, Mark]:
        """The position of each journal: checkpoints store them, so that a resumed run can rewind and detect damage."""
        return {name: journal.mark() for name, journal in (*self.journals.items(), (_HISTORY, self.history))}

    def check_journals(self) -> None:
        """Raise unless the journals still begin as they did when the newest checkpoint was written."""
        kept = [step for step in self.checkpoints.steps() if self.checkpoints.has_journals(step)]
        if kept:
            self._check(self.checkpoints.journals(kept[-1]))

    def rewind(self, step: int) -> None:
        """Go back to the checkpoint of `step`: everything later is removed."""
        marks = self.checkpoints.journals(step)
        self._check(marks)  # before anything is removed
        with explained("remove later steps of", self.path):
            self.checkpoints.clean()
            for later in reversed([each for each in self.checkpoints.steps() if each > step]):
                self.checkpoints.remove(later)
            for later in (each for each in self.rollout_steps() if each > step):
                self.rollouts_file(later).unlink()
            for later in (each for each in self.token_steps() if each > step):
                self.tokens_file(later).unlink()
            for later in (each for each in self.evaluation_steps() if each > step):
                self.evaluation_file(later).unlink()
            remove_drafts(self.path / "rollouts")
        for name, journal in self.journals.items():
            journal.truncate(marks[name])

    def _check(self, marks: Mapping[str, Mark]) -> None:
        for name, journal in (*self.journals.items(), (_HISTORY, self.history)):
            journal.check(marks[name])

    def _remember(self, kind: str, step: int, config: Mapping[str, Any], **content: Any) -> None:
        if config != self.config:
            _write_config(self.path, config)
            self.config = dict(config)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.history.append({"step": step, "time": now, "kind": kind, **content, "recipe": self.config})

    def _require_own(self) -> None:
        """Raise if something in the folder would lead a writer out of it."""
        files = (CONFIG, SIGNATURE, META, "lock", *(f"{name}.jsonl" for name in (*JOURNALS, _HISTORY)))
        for name in (*files, *_OTHERS):
            require_own(self.path / name)

    def _steps_of(self, kind: str) -> list[int]:
        paths = (self.path / "rollouts").glob("*")
        names = (re.fullmatch(rf"{kind}_(\d{{6,}})\.jsonl\.zst", path.name) for path in paths)
        return sorted(int(name[1]) for name in names if name)


def _refuse_content(path: Path) -> None:
    if not path.exists() or not any(path.iterdir()):
        return
    if (path / META).is_file():  # checked after looking for any file: another command may just have made the run
        raise RunFolderError(
            f"{path} already contains a run; continue it with `turnwise resume {path}`, or choose another name"
        )
    raise RunFolderError(f"{path} is not empty; give the run another name")


def _write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """The only place where a run's config is written."""
    content = to_yaml(config)
    sign(folder / CONFIG, content, config)  # first: a kill must not leave an unsigned config
    write_whole(folder / CONFIG, content)


def _move_into_place(draft: Path, path: Path) -> None:
    """If two commands create the same run at once, one wins: a non-empty folder is never replaced."""
    try:
        draft.rename(path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            _refuse_content(path)
        raise


def _remove_abandoned(path: Path) -> None:
    """Remove leftovers of killed commands for this run, but nothing that another command may be making now."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*{DRAFT}"):
        with suppress(FileNotFoundError):  # another command may be removing it too
            if time.time() - draft.stat().st_mtime > _ABANDONED:
                shutil.rmtree(draft, ignore_errors=True)
