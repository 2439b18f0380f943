"""What the site has beyond the files of docs/: the lessons, the changelog, and pages that nobody listed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
_CELL = re.compile(r"^# %%(.*)$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add pages that the navigation does not list to the guide, so that none is lost."""
    listed = set(_listed(config.nav))
    found = sorted(str(page.relative_to(config.docs_dir)) for page in Path(config.docs_dir).rglob("*.md"))
    guide = next(section["Guide"] for section in config.nav or [] if "Guide" in section)
    guide.extend(page for page in found if page not in listed)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Show the lessons as pages of text and code, and the changelog."""
    for lesson in sorted((ROOT / "examples" / "lessons").glob("lesson_*.py")):
        content = lesson_page(lesson.read_text(), name=lesson.name)
        files.append(File.generated(config, f"lessons/{lesson.stem}.md", content=content))
    files.append(File.generated(config, "changelog.md", content=(ROOT / "CHANGELOG.md").read_text()))
    return files


def lesson_page(script: str, *, name: str) -> str:
    """A script of cells as Markdown."""
    kinds_and_cells = _CELL.split(script)[1:]
    parts = [
        _text(cell) if "[markdown]" in kind else f"```python\n{cell.strip()}\n```"
        for kind, cell in zip(kinds_and_cells[::2], kinds_and_cells[1::2], strict=True)
    ]
    parts.insert(1, f"`python examples/lessons/{name}` runs this page; opened in an editor it is a notebook.")
    return "\n\n".join(parts).replace("](../../docs/", "](../")


def _text(cell: str) -> str:
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in cell.strip().splitlines())


def _listed(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for inner in nav.values():
            yield from _listed(inner)
    else:
        for inner in nav or []:
            yield from _listed(inner)
