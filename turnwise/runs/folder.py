"""The run folder: where everything lies that a run leaves behind."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from turnwise.runs.checkpoints import Checkpoints
from turnwise.runs.disk import DRAFT, RunFolderError, explained, sync, write_whole
from turnwise.runs.journal import Journal, plain

SCHEMA = 1
CONFIG, META = "config.yaml", "meta.json"
JOURNALS = ("metrics", "turns", "events", "evals")


class RunFolder:
    """A run on disk: `RunFolder.create("runs/geo", config, meta)` starts it, `RunFolder.open("runs/geo")` reads it."""

    def __init__(self, path: Path, config: dict[str, Any], meta: dict[str, Any]) -> None:
        self.path, self.config, self.meta = path, config, meta
        self.metrics, self.turns, self.events, self.evals = (Journal(path / f"{name}.jsonl") for name in JOURNALS)
        self.checkpoints = Checkpoints(path / "checkpoints")

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, Any], meta: Mapping[str, Any]) -> RunFolder:
        """Start a run in a folder that does not exist yet, or is empty. It is there with its config or not at all."""
        path = Path(path)
        draft = path.with_name(f".{path.name}{DRAFT}")
        with explained("create", path):
            _refuse_content(path)
            shutil.rmtree(draft, ignore_errors=True)
            try:
                for name in ("rollouts", "checkpoints"):
                    (draft / name).mkdir(parents=True)
                for name in JOURNALS:
                    (draft / f"{name}.jsonl").touch()
                write_whole(draft / CONFIG, _to_yaml(config))
                write_whole(draft / META, _to_json({"schema": SCHEMA, **meta}))
                draft.rename(path)
                sync(path.parent)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open a run that exists."""
        path = Path(path)
        if not (path / META).is_file():
            raise RunFolderError(
                f"{path} is no run folder (it has no {META}); give a folder that `turnwise train` made"
            )
        with explained("read", path):
            meta = _parse_meta(path / META)
            config = yaml.safe_load((path / CONFIG).read_bytes())
        return cls(path, config, meta)

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Be the run's one writer until the block ends, or the process in whatever way; a second writer is refused."""
        with explained("write", self.path):
            lock = (self.path / "lock").open("a")
        with lock:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock's, no forked worker inherits this one
            except OSError as error:
                raise RunFolderError(
                    f"{self.path} is being written by another process; wait until it is done, or stop it first"
                ) from error
            yield

    def reconfigure(self, config: Mapping[str, Any]) -> None:
        """Replace the config: a run may be made longer when it is resumed."""
        self.config = dict(config)
        write_whole(self.path / CONFIG, _to_yaml(self.config))

    @property
    def journals(self) -> dict[str, Journal]:
        """The four journals by name."""
        return dict(zip(JOURNALS, (self.metrics, self.turns, self.events, self.evals), strict=True))

    def rollouts_file(self, step: int) -> Path:
        """Where the trajectories of a step lie."""
        return self.path / "rollouts" / f"step_{step:06d}.jsonl.zst"

    def tokens_file(self, step: int) -> Path:
        """Where it lies what a step did to every sampled token."""
        return self.path / "rollouts" / f"tokens_{step:06d}.jsonl.zst"

    def rollout_steps(self) -> list[int]:
        """Steps whose trajectories were written, oldest first."""
        return self._steps_of("step")

    def token_steps(self) -> list[int]:
        """Steps of which it was written what they did to every token, oldest first."""
        return self._steps_of("tokens")

    def sizes(self) -> dict[str, int]:
        """Bytes of each journal, on the disk by now: a checkpoint keeps them, so that a resumed run can go back."""
        for journal in self.journals.values():
            journal.sync()
        return {name: journal.size for name, journal in self.journals.items()}

    def rewind(self, sizes: Mapping[str, int], step: int) -> None:
        """Go back to the checkpoint of `step`, which kept `sizes`: everything that came later is removed."""
        for name, journal in self.journals.items():
            journal.check(sizes[name])  # before anything is removed
        with explained("remove later steps of", self.path):
            self.checkpoints.clean()
            for later in reversed([each for each in self.checkpoints.steps() if each > step]):
                self.checkpoints.remove(later)
            for later in (each for each in self.rollout_steps() if each > step):
                self.rollouts_file(later).unlink()
            for later in (each for each in self.token_steps() if each > step):
                self.tokens_file(later).unlink()
            for draft in (self.path / "rollouts").glob(f"*{DRAFT}"):
                draft.unlink()
        for name, journal in self.journals.items():
            journal.truncate(sizes[name])

    def _steps_of(self, kind: str) -> list[int]:
        paths = (self.path / "rollouts").glob("*")
        names = (re.fullmatch(rf"{kind}_(\d{{6,}})\.jsonl\.zst", path.name) for path in paths)
        return sorted(int(name[1]) for name in names if name)


def _refuse_content(path: Path) -> None:
    if (path / META).is_file():
        raise RunFolderError(
            f"{path} already holds a run; continue it with `turnwise resume {path}`, or give the new run another name"
        )
    if path.exists() and any(path.iterdir()):
        raise RunFolderError(f"{path} is not empty; give the run another name")


def _parse_meta(path: Path) -> dict[str, Any]:
    meta = json.loads(path.read_bytes())
    if meta.get("schema") != SCHEMA:
        raise RunFolderError(
            f"{path} has schema {meta.get('schema')}, this version of turnwise reads {SCHEMA}; "
            "use the version that wrote the run"
        )
    return meta


def _to_yaml(config: Mapping[str, Any]) -> bytes:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True).encode()


def _to_json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(plain(content, lambda _: None), indent=1).encode() + b"\n"
