"""Rows of fixed length, filled with whole sequences that never see each other. Needs only numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from turnwise.nano.tokenizer import PAD_ID

DATA_FILE = "data.npz"
_OPEN_ROWS = 32


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Token rows. Two sequences `[2, 9, 4]` and `[2, 4]` in a row of six:

    ids    = [[2, 9, 4, 2, 4, 0]]
    starts = [[1, 0, 0, 1, 0, 1]]    # padding counts as a separate sequence
    """

    ids: NDArray[np.uint16]
    starts: NDArray[np.bool_]
    word_starts: NDArray[np.int64]
    """Tokens that begin a word of a name and occur nowhere else; they can be exchanged for one another."""
    word_parts: NDArray[np.int64]
    """The same for tokens inside words."""

    def save(self, folder: Path) -> None:
        """Save the rows to the folder, compressed."""
        np.savez_compressed(
            folder / DATA_FILE,
            ids=self.ids,
            starts=np.packbits(self.starts, axis=1),
            word_starts=self.word_starts,
            word_parts=self.word_parts,
        )


def load_rows(folder: Path) -> Packed:
    """The rows that `Packed.save` wrote to a folder."""
    path = folder / DATA_FILE
    if not path.exists():
        raise ValueError(f"no {DATA_FILE} in {folder}; make it first: turnwise make-nano --stage data")
    with np.load(path) as file:
        ids = file["ids"]
        starts = np.unpackbits(file["starts"], axis=1, count=ids.shape[1]).astype(bool)
        return Packed(ids=ids, starts=starts, word_starts=file["word_starts"], word_parts=file["word_parts"])


def pack_rows(
    sequences: Sequence[NDArray[np.uint16]], length: int, *, renamable: tuple[Sequence[int], Sequence[int]] = ((), ())
) -> Packed:
    """Put each sequence into the first open row with room for it; the fullest rows are closed."""
    rows, open_rows = list[list[NDArray[np.uint16]]](), list[tuple[int, list[NDArray[np.uint16]]]]()
    for sequence in sequences:
        if len(sequence) > length:
            raise ValueError(f"a sequence of {len(sequence)} tokens does not fit rows of {length}; use longer rows")
        place = next((i for i, (used, _) in enumerate(open_rows) if used + len(sequence) <= length), None)
        used, row = open_rows.pop(place) if place is not None else (0, [])
        open_rows.append((used + len(sequence), [*row, sequence]))
        if len(open_rows) > _OPEN_ROWS:
            rows.append(open_rows.pop(max(range(len(open_rows)), key=lambda i: open_rows[i][0]))[1])
    rows += [row for _, row in open_rows]
    return _lay_out(rows, length, renamable)


def _lay_out(
    rows: list[list[NDArray[np.uint16]]], length: int, renamable: tuple[Sequence[int], Sequence[int]]
) -> Packed:
    ids = np.full((len(rows), length), PAD_ID, dtype=np.uint16)
    starts = np.zeros((len(rows), length), dtype=bool)
    for number, row in enumerate(rows):
        ends = np.cumsum([len(sequence) for sequence in row])
        ids[number, : ends[-1]] = np.concatenate(row)
        starts[number, [0, *(end for end in ends if end < length)]] = True
    word_starts, word_parts = (np.asarray(tokens, dtype=np.int64) for tokens in renamable)
    return Packed(ids=ids, starts=starts, word_starts=word_starts, word_parts=word_parts)
