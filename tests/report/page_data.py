"""What a written page carries, read as a browser would read it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


class Page(HTMLParser):
    """All tags with their attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        self.texts.append((self.inside, data))

    def texts_of(self, tag: str) -> list[str]:
        """The texts of the elements of this name."""
        return [text for name, text in self.texts if name == tag]


def data_of(page: Path) -> dict[str, Any]:
    """The data block of a report."""
    data: dict[str, Any] = json.loads(Page(page.read_text(encoding="utf-8")).texts_of("script")[0])
    return data
