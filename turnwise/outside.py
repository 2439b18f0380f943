"""Code outside of turnwise that a recipe names as `module:name`. It is imported here and nowhere else.

Importing a module runs it. So whether that may happen is decided in one place: never in a dry run (`unread`), and for
the run folder of somebody else only with the user's word (`turnwise.trust`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any

_reads = ContextVar("reads", default=True)
_folders: list[str] = []


class NotImportedError(ImportError):
    """The code is there for all we know, but this is a dry run."""


def is_outside(name: str) -> bool:
    """Whether the name of an environment or part leads out of turnwise: `mine:Coin` does, `gem/game:Coin` does not."""
    module, colon, _ = name.partition(":")
    return bool(colon) and "/" not in module and module.partition(".")[0] != "turnwise"


def is_unread(name: str) -> bool:
    """Whether the name leads to code that must not be imported now."""
    return is_outside(name) and not _reads.get()


def reads() -> bool:
    """Whether code outside of turnwise may be imported now."""
    return _reads.get()


@contextmanager
def unread(wanted: bool = True) -> Iterator[None]:
    """Import no code outside of turnwise until the block ends; `unread(False)` changes nothing."""
    token = _reads.set(_reads.get() and not wanted)
    try:
        yield
    finally:
        _reads.reset(token)


def look_in(folder: Path) -> None:
    """Look for modules in this folder too, after all others: it may hold files that bear the names of packages."""
    _folders.append(str(folder))


def extend_path() -> None:
    """Let Python find the modules that lie in the folders of `look_in`."""
    sys.path += [folder for folder in _folders if folder not in sys.path]


def load(place: str) -> Any:
    """What `module:name` names; ImportError or AttributeError when there is no such thing."""
    if is_unread(place):
        raise NotImportedError(f"{place} is not imported in a dry run")
    if is_outside(place):
        extend_path()
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def load_class(place: str, *, key: str, methods: Sequence[str]) -> type[Any]:
    """The class that `module:Class` names, for the recipe's `key`; ValueError for anything without these methods.

    That is decided without a call, because a recipe may name anything, `os:system` included.
    """
    try:
        found = load(place)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{key}: {place} does not load: {error}; write it as package.module:Class") from error
    if not inspect.isclass(found) or not all(callable(getattr(found, name, None)) for name in methods):
        raise ValueError(f"{key}: {place} is not a class with {' and '.join(methods)}, and nothing else is called")
    return found
