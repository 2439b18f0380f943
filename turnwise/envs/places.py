"""Whether `module:Class` exists, by reading the module's source without running it."""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from turnwise.outside import extend_path, find_file, is_file_place


def require_place(place: str) -> None:
    """ValueError if the module or the name in `module:Class` does not exist, as far as its source shows."""
    module, _, name = place.rpartition(":")
    extend_path()
    if is_file_place(place):
        return _require_in_file(place, module, name)
    spec = _find_module(module)
    if spec is None:
        near = difflib.get_close_matches(module, [each.stem for each in Path().glob("*.py")], n=1)
        hint = f"did you mean {near[0]}:{name}? Otherwise " if near else ""
        raise ValueError(f"there is no module {module}, which {place} names; {hint}run this in its folder")
    if spec.origin is None or not spec.origin.endswith(".py"):
        return  # no source to read: importing it will tell
    _require_name(Path(spec.origin), module, name)


def _require_in_file(place: str, file: str, name: str) -> None:
    found = find_file(file)
    if found is None:
        near = difflib.get_close_matches(Path(file).name, [each.name for each in Path(file).parent.glob("*.py")], n=1)
        hint = f"did you mean {Path(file).with_name(near[0])}:{name}? Otherwise " if near else ""
        other = "" if "/" in file else f", or write {file.removesuffix('.py')}:{name}"
        raise ValueError(f"there is no file {file}, which {place} names; {hint}run this where it is{other}")
    _require_name(found, file, name)


def _require_name(file: Path, module: str, name: str) -> None:
    names = set(_top_level_names(_parse(file)))
    if name not in names and not names & {"*", "__getattr__"}:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {module}:{close[0]}?" if close else f"name a class or a function of {file}"
        raise ValueError(f"{'' if module.endswith('.py') else 'the module '}{module} has no {name}; {hint}")


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
