"""BM25 over entries that come, change and go: no rebuild after a change, as `search.retriever.BM25` would need."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"\w+")
_MAX_QUERY_CHARACTERS, _MAX_TERMS = 2_000, 64
_K1, _B = 1.2, 0.75
_DECIMALS = 6
_FEW = 64
"""Empty places that are not worth a rebuild."""

_Postings = tuple[NDArray[np.intp], NDArray[np.float64]]


class MemoryIndex:
    """Ranks entries by BM25: `index.put("1", "Ann's pets: Buddy"); index.search("pets of Ann", 3)` gives `["1"]`.

    Whatever shares no word with the query comes last. Of equals the one that was added later comes first.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._places: dict[str, int] = {}
        self._ids: list[str | None] = []
        self._words: list[Counter[str]] = []
        self._counts: dict[str, dict[int, int]] = {}
        self._arrays: dict[str, _Postings] = {}
        self._lengths, self._total = np.zeros(_FEW), 0
        """Words of each place, and of all."""
        self._floor = np.zeros(_FEW)
        """Where scores begin: below all others where a place is empty."""

    def __len__(self) -> int:
        return len(self._places)

    def put(self, entry: str, text: str) -> None:
        """Add an entry, or replace the text of one."""
        place = self._places.get(entry)
        if place is None:
            place = len(self._ids)
            self._places[entry] = place
            self._ids.append(entry)
            self._words.append(Counter())
        self._forget_words(place)
        self._words[place] = words = Counter(split_words(text))
        for word, count in words.items():
            self._counts.setdefault(word, {})[place] = count
            self._arrays.pop(word, None)
        if place == len(self._lengths):  # doubled, so that adding n entries costs O(n)
            self._lengths = np.concatenate([self._lengths, np.zeros(place)])
            self._floor = np.concatenate([self._floor, np.zeros(place)])
        self._lengths[place] = words.total()
        self._total += words.total()

    def remove(self, entry: str) -> None:
        """Remove an entry that is there."""
        place = self._places.pop(entry)
        self._forget_words(place)
        self._ids[place] = None
        self._lengths[place], self._floor[place] = 0, -1
        if len(self._ids) > 2 * len(self._places) + _FEW:
            self._close_gaps()

    def search(self, query: str, k: int) -> list[str]:
        """The `k` best entries, best first; all of them if there are fewer."""
        wanted = min(max(k, 0), len(self._places))
        if not wanted:
            return []
        scores = self._floor[: len(self._ids)].copy()
        for word in list(dict.fromkeys(split_words(query[:_MAX_QUERY_CHARACTERS])))[:_MAX_TERMS]:
            self._add_scores(scores, word)
        scores = np.round(scores, _DECIMALS)  # the last bits depend on the machine, the order must not
        least = np.partition(scores, -wanted)[-wanted]
        places = np.flatnonzero(scores >= least)
        best = places[np.lexsort((-places, -scores[places]))][:wanted]
        return [entry for place in best if (entry := self._ids[place]) is not None]

    def _add_scores(self, scores: NDArray[np.float64], word: str) -> None:
        if not (counts := self._counts.get(word)):
            return
        if word not in self._arrays:
            size = len(counts)
            self._arrays[word] = np.fromiter(counts, np.intp, size), np.fromiter(counts.values(), np.float64, size)
        places, often = self._arrays[word]
        there = len(self._places)
        mean = self._total / there
        rarity = np.log1p((there - len(counts) + 0.5) / (len(counts) + 0.5))
        scores[places] += rarity * often * (_K1 + 1) / (often + _K1 * (1 - _B + _B * self._lengths[places] / mean))

    def _forget_words(self, place: int) -> None:
        for word in self._words[place]:
            left = self._counts[word]
            del left[place]
            self._arrays.pop(word, None)
            if not left:
                del self._counts[word]
        self._total -= self._words[place].total()
        self._words[place] = Counter()

    def _close_gaps(self) -> None:
        kept = [(entry, words) for entry, words in zip(self._ids, self._words, strict=True) if entry is not None]
        self._clear()
        for entry, words in kept:
            self.put(entry, " ".join(words.elements()))


def split_words(text: str) -> list[str]:
    """The words of a text in lower case: `Ann's pets` has ann, s and pets."""
    return _WORD.findall(text.lower())
