"""Retrieval over short documents: one interface, and BM25 behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from threading import RLock
from typing import ParamSpec, Protocol, TypeVar

import tantivy

_FIELD = "body"
_MAX_QUERY_CHARACTERS = 2_000
_MAX_TERMS = 64
_MIN_HEAP, _MAX_HEAP = 64 << 20, 4_000 << 20
_HEAP_PER_CHARACTER = 16

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One retrievable text; `number` is its place in the corpus.

    Example: `Document(number=7, title="Amman", text="Capital and largest city of Jordan.")`.
    """

    number: int
    text: str
    title: str = ""

    @property
    def body(self) -> str:
        """Everything a retriever indexes and a reader sees."""
        return f"{self.title}: {self.text}" if self.title else self.text


class Retriever(Protocol):
    """Anything that answers a query with its `k` best documents, best first; equal queries give equal answers."""

    documents: Sequence[Document]

    def search(self, query: str, k: int) -> list[Document]:
        """The `k` best documents (fewer if fewer match), for any text."""
        ...


class BM25:
    """BM25 over an in-memory tantivy index; ties go to the document with the smaller number.

    Equal corpora give equal rankings in every process, because one writer thread makes one segment in document order.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = documents
        self._schema = tantivy.SchemaBuilder().add_text_field(_FIELD, tokenizer_name="words").build()
        self._analyzer = _analyzer()
        self._searcher = _build(documents, self._schema, self._analyzer)

    def search(self, query: str, k: int) -> list[Document]:
        """The `k` documents with the highest score; none if no word of the query is in the corpus."""
        terms = self._terms(query)
        if not terms or k < 1:
            return []
        hits = self._searcher.search(self._any_of(terms), limit=k, count=False).hits
        return [self.documents[address.doc] for _, address in hits]

    def _terms(self, query: str) -> list[str]:
        # Queries are untrusted: tantivy cannot take a lone surrogate, and a megabyte of words would stall a step.
        text = query[:_MAX_QUERY_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
        return list(dict.fromkeys(self._analyzer.analyze(text)))[:_MAX_TERMS]

    def _any_of(self, terms: list[str]) -> tantivy.Query:
        # Built from terms, never parsed: no text is query syntax.
        clauses = [(tantivy.Occur.Should, tantivy.Query.term_query(self._schema, _FIELD, term)) for term in terms]
        return tantivy.Query.boolean_query(clauses)


def _analyzer() -> tantivy.TextAnalyzer:
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    for step in (tantivy.Filter.remove_long(40), tantivy.Filter.lowercase(), tantivy.Filter.ascii_fold()):
        builder = builder.filter(step)
    return builder.build()


def _build(documents: Sequence[Document], schema: tantivy.Schema, analyzer: tantivy.TextAnalyzer) -> tantivy.Searcher:
    index = tantivy.Index(schema)
    index.register_tokenizer("words", analyzer)
    size = sum(len(document.body) for document in documents)
    heap = min(max(_MIN_HEAP, _HEAP_PER_CHARACTER * size), _MAX_HEAP)
    writer = index.writer(heap_size=heap, num_threads=1)
    for document in documents:
        entry = tantivy.Document()
        entry.add_text(_FIELD, document.body.encode("utf-8", "replace").decode("utf-8"))
        writer.add_document(entry)
    writer.commit()
    writer.wait_merging_threads()  # also ends the writer's threads
    index.reload()
    searcher = index.searcher()
    if searcher.num_segments > 1:
        raise ValueError(
            f"a corpus of {len(documents):,} documents does not fit the in-memory index; "
            "use a smaller corpus or use your own retriever"
        )
    return searcher


def build_once(build: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`functools.cache` for costly parts: threads that ask at the same time wait for one build and share it."""
    lock, cached = RLock(), cache(build)

    @wraps(build)
    def shared(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with lock:
            return cached(*args, **kwargs)

    return shared
