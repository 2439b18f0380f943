"""Training the nano model: first copying alone, until it copies; then reading and mixed episodes with some copying.

Needs torch, transformers and the rows that `data.py` wrote, no environment.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from turnwise.policy.nano.copying import copy_batch
from turnwise.policy.nano.model import Shape, build_model
from turnwise.policy.nano.packing import Packed, load_rows
from turnwise.policy.nano.tokenizer import AGENT_ID, END_ID, MARKERS


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How long and how fast to train; the defaults are for one large GPU."""

    copy_steps: int = 6_000
    """At most; the stage ends when `copied_enough` of the tokens that can be copied are."""
    copied_enough: float = 0.97
    copy_length: int = 256
    copy_sources: tuple[int, int] = (4, 96)
    """How many tokens there are to copy from, drawn evenly on a log scale: short sources teach, long ones are the aim."""
    steps: int = 12_000
    batch_tokens: int = 32_768
    copy_share: float = 1 / 16
    renamed_share: float = 0.6
    """Share of rows in which the pieces of names are exchanged at random."""
    learning_rate: float = 1.5e-3
    warm_up: int = 200
    weight_decay: float = 0.1
    minutes: float = math.inf
    """The schedule is shortened to fit; a run that fits anyway depends on the seed alone."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of tokens; `trained` marks those whose prediction is learnt."""

    ids: Tensor
    starts: Tensor
    trained: Tensor


def train(folder: Path, *, seed: int, device: str, settings: Settings, shape: Shape) -> LlamaForCausalLM:
    """Train on the folder's rows and save the model beside them, in bf16."""
    model = build_model(shape, seed=seed).to(device)
    generator = torch.Generator(device).manual_seed(seed)
    clock = Clock(minutes=settings.minutes)
    optimizer = torch.optim.AdamW(_groups(model, settings), betas=(0.9, 0.95), fused=device.startswith("cuda"))
    learner = Learner(model=model, optimizer=optimizer, settings=settings)
    _learn_copying(learner, generator, clock)
    _learn_mixture(learner, load_rows(folder), generator, clock)
    model.to(torch.bfloat16).save_pretrained(folder)
    return model


class Clock:
    """Says how much of the allowed time is used, and when to print again."""

    def __init__(self, *, minutes: float, every: float = 5.0) -> None:
        self._start = self._printed = time.monotonic()
        self._seconds, self._every = 60 * minutes, every

    @property
    def used(self) -> float:
        """Share of the allowed time that is over."""
        return (time.monotonic() - self._start) / self._seconds

    def print(self, line: Callable[[], str], *, always: bool = False) -> None:
        """Print the line if the last one is some seconds old; it is made only then."""
        now = time.monotonic()
        if always or now - self._printed >= self._every:
            self._printed = now
            print(f"{now - self._start:6.1f} s  {line()}", flush=True)


@dataclass(kw_only=True)
class Learner:
    """Model and optimiser, and a running accuracy that stays on the device until it is read."""

    model: LlamaForCausalLM
    optimizer: torch.optim.Optimizer
    settings: Settings
    accuracy: Tensor | float = 0.0
    loss: Tensor | float = 0.0

    def step(self, batch: Batch, *, rate: float) -> None:
        """One update at `rate` times the learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate * self.settings.learning_rate
        device = batch.ids.device.type
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = forward(self.model, batch.ids, batch.starts)[:, :-1]
        targets = batch.ids[:, 1:].masked_fill(~batch.trained[:, 1:], -100)
        loss = cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        right = (logits.argmax(-1) == targets).sum() / batch.trained[:, 1:].sum()
        self.accuracy = 0.95 * self.accuracy + 0.05 * right.detach()
        self.loss = loss.detach()


def forward(model: LlamaForCausalLM, ids: Tensor, starts: Tensor) -> Tensor:
    """Logits of packed rows: sequences count their own positions and never see each other."""
    index = torch.arange(ids.shape[1], device=ids.device)
    positions = index - torch.where(starts, index, 0).cummax(dim=1).values
    sequence = starts.cumsum(dim=1)
    visible = (sequence[:, None, :, None] == sequence[:, None, None, :]) & (index[:, None] >= index)
    return model(input_ids=ids, position_ids=positions, attention_mask=visible, use_cache=False).logits


def spoken(ids: Tensor) -> Tensor:
    """Which tokens the agent says: those after an agent marker up to and including the next end marker."""
    opened, closed = (ids == AGENT_ID).cumsum(dim=1), (ids == END_ID).cumsum(dim=1)
    inside = opened > closed  # after this token the agent has the word
    return torch.cat([torch.zeros_like(inside[:, :1]), inside[:, :-1]], dim=1)


def rename(ids: Tensor, classes: tuple[Tensor, ...], generator: torch.Generator) -> Tensor:
    """Exchange the tokens of each class for one another, by another permutation in each row.

    It makes names that no corpus holds out of those that one does, and keeps who is who.
    """
    rows, vocabulary = ids.shape[0], int(max(ids.max(), *(tokens.max() for tokens in classes))) + 1
    table = torch.arange(vocabulary, device=ids.device).repeat(rows, 1)
    for tokens in classes:
        order = torch.rand(rows, tokens.numel(), generator=generator, device=ids.device).argsort(dim=1)
        table[:, tokens] = tokens[order]
    return table.gather(1, ids)


def _learn_copying(learner: Learner, generator: torch.Generator, clock: Clock) -> None:
    settings = learner.settings
    for step in range(settings.copy_steps):
        learner.step(_copy_rows(learner, settings.copy_length, generator), rate=min(1.0, (step + 1) / settings.warm_up))
        clock.print(lambda: f"copying {step + 1}: {_figures(learner)}")
        if step % 50 == 49 and float(learner.accuracy) > settings.copied_enough:
            break
        if clock.used > 0.5:
            break
    clock.print(lambda: f"copying ends: {_figures(learner)}", always=True)


def _learn_mixture(learner: Learner, rows: Packed, generator: torch.Generator, clock: Clock) -> None:
    settings, used_before = learner.settings, clock.used
    learner.accuracy = 0.0
    batches = _mixed_batches(learner, rows, generator)
    for step in count():
        # Steps and time share one schedule: whichever runs out first ends it.
        progress = max(step / settings.steps, (clock.used - used_before) / (1 - used_before))
        if progress >= 1:
            break
        warm = min(1.0, (step + 1) / settings.warm_up)
        learner.step(next(batches), rate=warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress))))
        clock.print(lambda: f"mixture {step + 1} ({progress:.0%}): {_figures(learner)}")
    clock.print(lambda: f"mixture ends: {_figures(learner)}", always=True)


def _copy_rows(learner: Learner, length: int, generator: torch.Generator, *, rows: int | None = None) -> Batch:
    shortest, longest = learner.settings.copy_sources
    share = float(torch.rand((), generator=generator, device=generator.device))
    source = round(shortest * (longest / shortest) ** share)
    rows = rows or max(1, learner.settings.batch_tokens // length)
    tokens = torch.arange(len(MARKERS), learner.model.config.vocab_size, device=generator.device)
    ids, foretold = copy_batch(rows=rows, length=length, source=source, tokens=tokens, generator=generator)
    starts = torch.zeros_like(foretold)
    starts[:, 0] = True
    return Batch(ids=ids, starts=starts, trained=foretold)


def _mixed_batches(learner: Learner, rows: Packed, generator: torch.Generator) -> Iterator[Batch]:
    device, settings = generator.device, learner.settings
    all_ids = torch.from_numpy(rows.ids.astype("int32")).to(device)
    all_starts = torch.from_numpy(rows.starts).to(device)
    classes = tuple(torch.from_numpy(tokens).to(device) for tokens in (rows.word_starts, rows.word_parts))
    length = all_ids.shape[1]
    size = max(2, settings.batch_tokens // length)
    copying = max(1, round(settings.copy_share * size))
    while True:
        chosen = torch.randint(len(all_ids), (size - copying,), generator=generator, device=device)
        ids, starts = all_ids[chosen].long(), all_starts[chosen]
        renamed = torch.rand(len(ids), 1, generator=generator, device=device) < settings.renamed_share
        ids = torch.where(renamed, rename(ids, classes, generator), ids)
        copies = _copy_rows(learner, length, generator, rows=copying)
        yield Batch(
            ids=torch.cat([ids, copies.ids]),
            starts=torch.cat([starts, copies.starts]),
            trained=torch.cat([spoken(ids), copies.trained]),
        )


def _groups(model: LlamaForCausalLM, settings: Settings) -> list[dict[str, object]]:
    """Matrices decay; gains and the embedding, which is also the output, do not."""
    named = list(model.named_parameters())
    decayed = [value for name, value in named if value.ndim == 2 and "embed" not in name]
    rest = [value for name, value in named if value.ndim != 2 or "embed" in name]
    return [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": rest, "weight_decay": 0.0}]


def _figures(learner: Learner) -> str:
    rate = learner.optimizer.param_groups[0]["lr"]
    return f"loss {float(learner.loss):.3f}, accuracy {float(learner.accuracy):.3f}, rate {rate:.1e}"
