"""What the nano model is trained on, batch by batch, made on the training device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from turnwise.nano.copying import copy_batch
from turnwise.nano.fixed_rows import Packed
from turnwise.nano.tokenizer import AGENT_ID, END_ID, MARKERS, VOCABULARY

COPY_LENGTH = 256
SOURCES = (4, 96)
"""Fewest and most tokens to copy from, drawn evenly on a log scale: short sources teach, long ones are the goal."""
COPY_SHARE, RENAMED_SHARE = 1 / 16, 0.6
"""Share of the mixture's rows that are copying data; of the others, share with exchanged names."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of tokens; `starts` opens a sequence, `trained` marks the tokens whose prediction is trained."""

    ids: Tensor
    starts: Tensor
    trained: Tensor


def copying_batches(tokens: int, *, seed: int, device: str, length: int = COPY_LENGTH) -> Iterator[Batch]:
    """Endless batches of copying data, `tokens` tokens each."""
    generator, rng = torch.Generator(device).manual_seed(seed), Random(seed)  # sizes come from the host: no waiting
    ordinary = torch.arange(len(MARKERS), VOCABULARY, device=device)
    shortest, longest = SOURCES[0], min(SOURCES[1], length // 2)
    rows = max(1, tokens // length)
    while True:
        source = round(shortest * (longest / shortest) ** rng.random())
        ids, foretold = copy_batch(rows=rows, length=length, source=source, tokens=ordinary, generator=generator)
        starts = torch.zeros_like(foretold)
        starts[:, 0] = True
        yield Batch(ids=ids, starts=starts, trained=foretold)


def mixed_batches(rows: Packed, tokens: int, *, seed: int, device: str) -> Iterator[Batch]:
    """Endless batches of packed chats, some of them with exchanged names, and a few rows of copying data."""
    generator = torch.Generator(device).manual_seed(seed)
    all_ids = torch.from_numpy(rows.ids.astype("int32")).to(device)
    all_starts = torch.from_numpy(rows.starts).to(device)
    classes = tuple(torch.from_numpy(tokens).to(device) for tokens in (rows.word_starts, rows.word_parts))
    length = all_ids.shape[1]
    size = max(2, tokens // length)
    copying = max(1, round(COPY_SHARE * size))
    for copies in copying_batches(copying * length, seed=seed, device=device, length=length):
        chosen = torch.randint(len(all_ids), (size - copying,), generator=generator, device=device)
        ids, starts = all_ids[chosen].long(), all_starts[chosen]
        renamed = torch.rand(len(ids), 1, generator=generator, device=device) < RENAMED_SHARE
        ids = torch.where(renamed, rename(ids, classes, generator), ids)
        yield Batch(
            ids=torch.cat([ids, copies.ids]),
            starts=torch.cat([starts, copies.starts]),
            trained=torch.cat([spoken(ids), copies.trained]),
        )


def spoken(ids: Tensor) -> Tensor:
    """Which tokens the agent says: those after an agent marker up to and including the next end marker."""
    opened, closed = (ids == AGENT_ID).cumsum(dim=1), (ids == END_ID).cumsum(dim=1)
    has_the_word = opened > closed
    return torch.cat([torch.zeros_like(has_the_word[:, :1]), has_the_word[:, :-1]], dim=1)


def rename(ids: Tensor, classes: tuple[Tensor, ...], generator: torch.Generator) -> Tensor:
    """Exchange the tokens of each class for one another, by a different permutation in each row.

    This turns existing names into new ones and keeps their identity within a row.
    """
    rows = ids.shape[0]
    table = torch.arange(VOCABULARY, device=ids.device).repeat(rows, 1)
    for tokens in classes:
        order = torch.rand(rows, tokens.numel(), generator=generator, device=ids.device).argsort(dim=1)
        table[:, tokens] = tokens[order]
    return table.gather(1, ids)
