"""Copying data: rows of random tokens in which what comes next has occurred before.

Copying an unseen name takes an induction circuit (find the last place with this token, say what came after it),
and none forms from names alone. Here it is the only thing to learn.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnwise.nano.tokenizer import BEGIN_ID

JUMP = 1 / 12
"""How often a copied span ends and another begins: spans are about as long as a question or a document."""


def copy_batch(
    *, rows: int, length: int, source: int, tokens: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(ids, whether each is predictable), both of shape (rows, length).

    A row begins with `source` different tokens in random order and continues with spans of them. A token is predictable
    from its second occurrence on, if it continues a span. With `source=4` a row may read

        begin  a b c d  b c d a b d a        predictable: the second b's c, d; then (a begins a span) its b
    """
    device = tokens.device
    words = tokens[_shuffled(rows, tokens.numel(), generator)[:, :source]]
    copied = length - 1 - source
    place, continues = _walk(rows, copied, source, generator)
    begin = torch.full((rows, 1), BEGIN_ID, device=device)
    ids = torch.cat([begin, words, words.gather(1, place)], dim=1)
    foretold = torch.cat([torch.zeros(rows, 1 + source, dtype=torch.bool, device=device), continues], dim=1)
    return ids, foretold


def _shuffled(rows: int, count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(rows, count, generator=generator, device=generator.device).argsort(dim=1)


def _walk(rows: int, steps: int, source: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The position in the source that each copied token comes from, and whether it follows its predecessor there."""
    device = generator.device
    jumps = torch.rand(rows, steps, generator=generator, device=device) < JUMP
    jumps[:, 0] = True
    targets = torch.randint(source, (rows, steps), generator=generator, device=device)
    step = torch.arange(steps, device=device).expand(rows, steps)
    last_jump = torch.where(jumps, step, 0).cummax(dim=1).values
    place = (targets.gather(1, last_jump) + step - last_jump) % source
    return place, ~jumps & (place != 0)  # what follows the source's last token was never shown
