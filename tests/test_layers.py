"""Imports point downwards, as section 9 of the architecture page says, and what reads runs does not wait for torch."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| `([\w.]+)` \|([^|]*)\|$", re.MULTILINE)


@cache
def table() -> dict[str, set[str]]:
    """What each package may import, from the page."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("## 9. Dependencies")[2].partition("\n## ")[0]
    return {
        name: {each.strip() for each in allowed.split(",") if each.strip()} for name, allowed in ROW.findall(section)
    }


def layer(module: str) -> str | None:
    """The row that a module belongs to, the most specific first; None for what lies below all rows."""
    parts = module.split(".")[1:]
    return next((name for end in (2, 1) if (name := ".".join(parts[:end])) in table()), None)


def imported(node: ast.AST) -> Iterator[str]:
    """The modules of ours that a file imports anywhere, except for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom) and child.module and child.module.split(".")[0] == "turnwise":
            yield from (f"{child.module}.{name.name}" for name in child.names)
        if isinstance(child, ast.Import):
            yield from (name.name for name in child.names if name.name.split(".")[0] == "turnwise")
        yield from imported(child)


def test_every_import_is_in_the_table():
    wrong: list[str] = []
    for file in sorted((ROOT / "turnwise").rglob("*.py")):
        own = layer(".".join(file.relative_to(ROOT).with_suffix("").parts))
        for module in imported(ast.parse(file.read_text())):
            other = layer(module)
            allowed = set[str]() if own is None else {own, *table()[own]}
            if other is None or file.name == "__main__.py":
                continue
            if allowed.isdisjoint((other, other.partition(".")[0])):
                wrong.append(f"{file.relative_to(ROOT)} imports {module}")
    assert wrong == []


def test_every_package_has_a_row():
    packages = {file.parent.name for file in (ROOT / "turnwise").glob("*/__init__.py")}
    assert packages <= {name.partition(".")[0] for name in table()}


def test_the_table_has_no_cycle():
    order = list(TopologicalSorter(table()).static_order())
    assert set(order) == set(table())


@pytest.mark.parametrize(
    "name",
    ["turnwise"]
    + [
        f"turnwise.{name}"
        for name in ("types", "envs", "runs", "runs.reading", "report", "watch", "guard.guard", "algorithm")
    ]
    + [f"turnwise.{name}" for name in ("recipe.schema", "recipe.loading", "study.processes", "study.arms", "cli")],
)
def test_importing_it_does_not_import_torch(name: str):
    program = f"import sys, {name}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
