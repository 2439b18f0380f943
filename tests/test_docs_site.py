"""The site that `make docs` builds: whole, searchable, and made of its own files alone."""

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parent.parent
TABS = ["Start", "Guide", "Concepts", "Scaling", "Recipes", "Claims", "Reference"]


@dataclass
class Page(HTMLParser):
    """What a page links to, what it loads, and the names that can be linked to."""

    links: list[str] = field(default_factory=list[str])
    loads: list[str] = field(default_factory=list[str])
    names: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.names.add(value)
            elif name == "href" and value:
                (self.links if tag == "a" else self.loads).append(value)
            elif name in ("src", "srcset", "data", "poster") and value:
                self.loads.append(value)

    @classmethod
    def of(cls, file: Path) -> "Page":
        page = cls()
        page.feed(file.read_text())
        return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="needs turnwise[docs]")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    folder = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    try:
        build(config)  # strict: a page or anchor that does not exist is an error
    except Abort as error:
        pytest.fail(f"{error}; run make docs to see why")
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page.of(file) for file in sorted(site.rglob("*.html"))}


def test_every_page_of_docs_and_every_lesson_is_on_the_site(site: Path) -> None:
    documents = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    lessons = [Path("lessons") / page.name for page in (ROOT / "examples/lessons").glob("lesson_*.py")]
    assert len(documents) > 30
    assert len(lessons) == 5
    for page in (*documents, *lessons, Path("changelog.md")):
        assert (site / page.with_suffix(".html")).is_file(), page


def test_no_internal_link_is_broken(site: Path, pages: dict[Path, Page]) -> None:
    broken: list[str] = []
    for file, page in pages.items():
        if file.name == "404.html":  # its links begin at the root of a server
            continue
        for link in (*page.links, *page.loads):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            found = target.is_file() and (
                not parts.fragment or unquote(parts.fragment) in (pages[target].names if target in pages else ())
            )
            if not found and not parts.fragment.startswith("__"):  # the theme's own toggles
                broken.append(f"{file.relative_to(site)}: {link}")
    assert not broken


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    outside = [
        f"{file.name}: {load}" for file, page in pages.items() for load in page.loads if re.match(r"(\w+:)?//", load)
    ]
    styles = [
        style
        for file in site.rglob("*.css")
        for style in re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", file.read_text())
    ]
    assert outside == []
    assert styles == []


def test_the_tabs_are_in_the_order_of_a_newcomer_and_the_search_knows_the_pages(site: Path) -> None:
    shown = re.findall(r'class="md-tabs__link"[^>]*>\s*([^<]+?)\s*<', (site / "index.html").read_text())
    assert shown == TABS
    index = json.loads((site / "search/search_index.json").read_text())
    titles = {entry["title"] for entry in index["docs"]}
    assert {"Claims", "Concepts", "Lesson 4: reading the microscope", "Guide"} <= titles
    assert (site / "search/search_index.js").is_file()  # read by a page that was opened as a file
