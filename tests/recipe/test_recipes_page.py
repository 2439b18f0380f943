"""docs/recipes.md says what the recipe's types say."""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from turnwise.algorithm import AXES, Algorithm, Part
from turnwise.recipe.checks import section_of
from turnwise.recipe.schema import Recipe

PAGE = (Path(__file__).parent.parent.parent / "docs/recipes.md").read_text()
FIRST, REFERENCE = PAGE.split("## How a recipe is put together")


def rows(text: str) -> dict[str, tuple[str, ...]]:
    found = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| `")
    ]
    return {key.strip("`"): tuple(cells) for key, *cells in found}


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """The texts under the fields of a section."""
    texts = re.findall(r'^    (\w+): [^\n]+\n    """(.*?)"""', inspect.getsource(model), flags=re.MULTILINE | re.DOTALL)
    return {name: " ".join(text.split()) for name, text in texts}


def fields(model: type[BaseModel], place: str = "") -> Iterator[tuple[str, str, str | None]]:
    """Every key below a section with its default and, where the types have one, its description."""
    texts = descriptions(model)
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is None or field.default is None:
            default = field.default.kind if isinstance(field.default, Part) else field.default
            yield place + name, f"`{json.dumps(default)}`", texts.get(name)
        if section is not None and section is not Algorithm:
            yield from fields(section, f"{place}{name}.")


def test_the_page_has_every_key_with_its_default_and_description() -> None:
    page = {key: cells for key, cells in rows(REFERENCE).items() if not key.startswith("algorithm.")}
    keys = {key: (default, text) for key, default, text in fields(Recipe)}
    assert {key: default for key, (default, _) in page.items()} == {key: default for key, (default, _) in keys.items()}
    assert {key: page[key][1] for key, (_, text) in keys.items() if text} == {
        k: text for k, (_, text) in keys.items() if text
    }
    assert all(text for _, text in page.values())


def test_the_page_has_every_axis_with_its_kinds() -> None:
    page = {key: re.findall(r"`([^`]+)`", kinds) for key, (kinds, _) in rows(REFERENCE).items() if "algorithm." in key}
    assert page == {f"algorithm.{axis}": list(AXES.get(axis, ())) for axis in Algorithm.model_fields}


def test_a_newcomer_needs_fewer_than_thirty_keys_and_all_of_them_exist() -> None:
    first = rows(FIRST)
    assert 15 < len(first) < 30
    assert set(first) - {"algorithm"} <= set(rows(REFERENCE))
