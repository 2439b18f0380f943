"""Whether `module:Class` exists, by reading the module's source without running it."""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from turnwise.outside import extend_path


def require_place(place: str) -> None:
    """ValueError if the module or the name in `module:Class` does not exist, as far as its source shows."""
    module, _, name = place.partition(":")
    extend_path()
    spec = _find_module(module)
    if spec is None:
        fix = f"write {module.removesuffix('.py')}:{name}" if module.endswith(".py") else "run this in its folder"
        raise ValueError(f"there is no module {module}, which {place} names; {fix}")
    if spec.origin is None or not spec.origin.endswith(".py"):
        return  # no source to read: importing it will tell
    names = set(_top_level_names(_parse(Path(spec.origin))))
    if name not in names and not names & {"*", "__getattr__"}:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {module}:{close[0]}?" if close else f"name a class of {spec.origin}"
        raise ValueError(f"the module {module} has no {name}; {hint}")


def _find_module(module: str) -> ModuleSpec | None:
    """Find a module; unlike `importlib.util.find_spec` this does not import its parent packages."""
    places: Sequence[str] | None = None
    spec, path = None, ""
    for part in module.split("."):
        path = f"{path}.{part}" if path else part
        found = (finder.find_spec(path, places) for finder in sys.meta_path)
        spec = next((each for each in found if each is not None), None)
        if spec is None:
            return None
        places = spec.submodule_search_locations or []
    return spec


def _parse(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{file} is not valid Python: {error}") from error


def _top_level_names(tree: ast.AST) -> Iterator[str]:
    """The names that a module defines or imports, also inside `if` and `try`; `*` if it imports all of another's."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        else:
            yield from _top_level_names(node)
