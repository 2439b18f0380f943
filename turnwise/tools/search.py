"""Search as a tool, over anything that can rank documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from turnwise.tools.tool import Tool, tool


class Document(Protocol):
    """What a search finds."""

    @property
    def title(self) -> str:
        """Its name."""
        ...

    @property
    def text(self) -> str:
        """Its content."""
        ...


class Retriever(Protocol):
    """Ranks documents for a query, best first."""

    def search(self, query: str, k: int) -> Sequence[Document]:
        """At most `k` documents."""
        ...


def search_tool(retriever: Retriever, *, k: int = 3) -> Tool:
    """A tool `search(query)` that returns the `k` best documents, numbered."""

    def search(query: str) -> str:
        """Look up documents.

        Args:
            query: a few words to look for
        """
        found = retriever.search(query, k)
        lines = (f"{number}. {_show(document)}" for number, document in enumerate(found, start=1))
        return "\n".join(lines) or "nothing found"

    return tool(search)


def _show(document: Document) -> str:
    return f"{document.title}: {document.text}" if document.title else document.text
