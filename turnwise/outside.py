"""Code outside turnwise that a recipe names as `module:name`. It is imported here and nowhere else.

Importing a module runs it, so one place decides whether that may happen: never in a dry run (`unread`), and for
somebody else's run folder only with the user's consent (`turnwise.trust`).
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

_reads = ContextVar("reads", default=True)
_folders: list[str] = []
_loading = threading.RLock()


class NotImportedError(ImportError):
    """The code may exist, but a dry run does not import it."""


def is_outside(name: str) -> bool:
    """Whether the name of an environment or part is outside turnwise: `mine:Coin` is, `gem/game:Coin` is not.

    A file is, too: `agents/mine.py:run`.
    """
    module, colon, _ = name.partition(":")
    if is_file_place(name):
        return True
    return bool(colon) and "/" not in module and module.partition(".")[0] != "turnwise"


def is_file_place(name: str) -> bool:
    """Whether it names something in a file of Python: `agents/mine.py:run`."""
    file, colon, attribute = name.rpartition(":")
    return bool(colon) and file.endswith(".py") and attribute.isidentifier() and "://" not in file


def is_unread(name: str) -> bool:
    """Whether the name is code that must not be imported now."""
    return is_outside(name) and not _reads.get()


def reads() -> bool:
    """Whether code outside turnwise may be imported now."""
    return _reads.get()


@contextmanager
def unread(wanted: bool = True) -> Iterator[None]:
    """Import no code outside turnwise until the block ends; `unread(False)` changes nothing."""
    token = _reads.set(_reads.get() and not wanted)
    try:
        yield
    finally:
        _reads.reset(token)


def look_in(folder: Path) -> None:
    """Search this folder for modules too, after all others: its files may have the names of packages."""
    _folders.append(str(folder))


def extend_path() -> None:
    """Let Python find the modules in the folders of `look_in`."""
    sys.path += [folder for folder in _folders if folder not in sys.path]


def load(place: str) -> Any:
    """The object that `module:name` names; ImportError or AttributeError if it does not exist."""
    if is_unread(place):
        raise NotImportedError(f"{place} is not imported in a dry run")
    if is_outside(place):
        extend_path()
    module, _, name = place.rpartition(":")
    if is_file_place(place):
        found = _load_file(module)
        if not hasattr(found, name):
            close = get_close_matches(name, vars(found), n=1)
            raise AttributeError(f"{module} has no attribute {name!r}{f'; did you mean {close[0]}?' if close else ''}")
        return getattr(found, name)
    # To look for `mine.a/b` Python would import `mine`, though such a name counts as nobody's code.
    if "/" in module or not name.isidentifier():
        raise ImportError(f"{place} is neither package.module:name nor file.py:name")
    return getattr(import_module(module), name)


def anywhere(place: str) -> str:
    """The same place for a process in another folder: a file by its whole path."""
    file, _, name = place.rpartition(":")
    found = find_file(file) if is_file_place(place) else None
    return place if found is None else f"{found}:{name}"


def find_file(name: str) -> Path | None:
    """A file of Python: where the program runs, in a folder of `look_in`, or on the path that another process gave."""
    places = [Path(name).expanduser(), *(Path(folder) / name for folder in dict.fromkeys((*_folders, *sys.path)))]
    return next((place.resolve() for place in places if place.is_file()), None)


def _load_file(name: str) -> ModuleType:
    """The module in a file, loaded once; it may import its neighbours."""
    file = find_file(name)
    if file is None:
        raise ModuleNotFoundError(f"there is no file {name}")
    # Under its path, because its plain name may be that of an installed package.
    name = f"turnwise_file_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    with _loading:  # several threads may ask for it at once
        if name not in sys.modules:
            spec = spec_from_file_location(name, file)
            assert spec is not None
            assert spec.loader is not None
            if str(file.parent) not in sys.path:
                sys.path.append(str(file.parent))
            sys.modules[name] = module = module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]


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
