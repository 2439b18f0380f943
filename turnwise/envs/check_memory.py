"""Remembers what the env doctor passed: an unchanged environment is not checked again at every start."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from turnwise import __version__
from turnwise.cache import cache_folder
from turnwise.envs.base import Env
from turnwise.envs.check import Diagnosis
from turnwise.envs.registry import find
from turnwise.envs.wrappers.named import Choice, find_wrapper
from turnwise.envs.wrappers.reward_functions import RewardFunction
from turnwise.types import ENVIRONMENT


def was_sound(env_id: str, kwargs: Mapping[str, Any], wrappers: Sequence[Choice] = ()) -> bool:
    """Whether this environment passed before with these arguments, wrappers and this code."""
    file = _file(env_id, kwargs, wrappers)
    return file is not None and file.is_file()


def remember(report: Diagnosis, kwargs: Mapping[str, Any], wrappers: Sequence[Choice] = ()) -> None:
    """Remember a report without defects; a cache that cannot be written must not stop the run."""
    file = _file(report.env, kwargs, wrappers)
    if file is None or not report.ok:
        return
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(asdict(report), indent=1), encoding="utf-8")
        draft.replace(file)


def _file(env_id: str, kwargs: Mapping[str, Any], wrappers: Sequence[Choice]) -> Path | None:
    """A file name from everything that decides the findings; None if the code cannot be read, as in a notebook."""
    code = hashlib.sha256()
    rewards = [each for choice in wrappers if choice["kind"] == "rewards" for each in choice["functions"]]
    around = (
        *(find_wrapper(choice["kind"]).__module__ for choice in wrappers),
        *(RewardFunction.of(each).function.__module__ for each in rewards if each["function"] != ENVIRONMENT),
    )
    for module in sorted({*_modules(find(env_id)[0].entry_point), *around}):
        path = getattr(sys.modules.get(module), "__file__", None)
        if path is None or not Path(path).is_file():
            return None
        code.update(Path(path).read_bytes())
    key = json.dumps([__version__, env_id, sorted(kwargs.items()), code.hexdigest(), *wrappers], default=repr)
    return cache_folder() / "env-doctor" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _modules(entry: str | Callable[..., Env]) -> Iterator[str]:
    """The module that makes the environment, and those of the environments it refers to, with their base classes."""
    name = entry.partition(":")[0] if isinstance(entry, str) else entry.__module__
    yield name
    for value in vars(import_module(name)).values():
        if isinstance(value, type) and issubclass(value, Env):
            yield from (base.__module__ for base in value.__mro__ if base is not object)
