"""Strict YAML for recipes, from a string or a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from turnwise.untrusted import parse_shallow


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key may occur only once; otherwise the last would silently win."""


def _mapping_of_single_keys(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if str(key.value) in seen:
            line = key.start_mark.line + 1
            raise ValueError(f"{key.value!r} is given twice (again in line {line}); keep one of them")
        seen.add(str(key.value))
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_of_single_keys)


def file_of(recipe: str | Path) -> Path | None:
    """The file that a recipe names, by a path or by text such as `mine.yaml`; None if it is the recipe itself."""
    if isinstance(recipe, str) and ("\n" in recipe or not recipe.endswith((".yaml", ".yml"))):
        return None
    return Path(recipe)


def read_text(file: Path) -> str:
    """The text of a recipe file."""
    if not file.is_file():
        raise ValueError("there is no such file")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError("this is not a text file; a recipe is YAML in UTF-8") from None


ALGORITHM = "an algorithm is a mapping of axes to choices, such as {preset: st-ppo, epochs: 4}"


def parse(text: str, *, shape: str = ALGORITHM) -> dict[str, Any]:
    """The choices in a recipe's text; `shape` describes the expected form for the error message."""
    try:
        data = parse_shallow(lambda text: yaml.load(text, Loader=_Loader), text)
    except yaml.YAMLError as error:
        raise ValueError(f"the recipe is not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(shape)
    return {str(key): value for key, value in data.items()}  # pyright: ignore
