"""Dense retrieval behind the same interface as BM25: any text embedding, exact cosine similarity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from turnwise.envs.search.retriever import Document

Embed = Callable[[str], Sequence[float] | NDArray[np.floating]]
"""Turns a text into a vector of fixed length."""

_DECIMALS = 6


class Dense:
    """The documents whose embeddings are closest in direction to the query's; ties go to the smaller number.

    Example: `Dense(documents, hashed_ngrams).search("aman jordn", k=3)` tolerates the typos.
    """

    def __init__(self, documents: Sequence[Document], embed: Embed) -> None:
        if not documents:
            raise ValueError("a dense retriever needs at least one document")
        self.documents = documents
        self._embed = embed
        self._matrix = np.stack([_unit(embed(document.body)) for document in documents])

    def search(self, query: str, k: int) -> list[Document]:
        """The `k` nearest documents; none for a query whose embedding is zero."""
        vector = _unit(self._embed(query))
        if vector.shape != self._matrix.shape[1:]:
            raise ValueError(
                f"the embedding gave {vector.size} numbers for a query and {self._matrix.shape[1]} for a document; "
                "use one that always gives the same length"
            )
        if not vector.any():
            return []
        # Rounded before ranking: the last bits of a dot product depend on the machine, the order must not.
        scores = np.round(self._matrix @ vector, _DECIMALS)
        best = np.argsort(-scores, kind="stable")[: max(k, 0)]
        return [self.documents[number] for number in best]


def _unit(vector: Sequence[float] | NDArray[np.floating]) -> NDArray[np.float32]:
    array = np.asarray(vector, dtype=np.float32)
    return array / max(float(np.linalg.norm(array)), 1e-12)


def hashed_ngrams(text: str, *, dimensions: int = 512, length: int = 3) -> NDArray[np.float32]:
    """A small embedding without a model: hashed counts of letter triples."""
    padded = f" {' '.join(text.lower().split())} "
    vector = np.zeros(dimensions, dtype=np.float32)
    for start in range(len(padded) - length + 1):
        vector[crc32(padded[start : start + length].encode("utf-8", "replace")) % dimensions] += 1
    return vector
