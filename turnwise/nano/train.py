"""Train the nano model: first copying alone, until it copies; then reading and mixed episodes with some copying.

Needs torch, transformers and the rows that `data.py` wrote, but no environment.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from turnwise.nano.fixed_rows import Packed, load_rows
from turnwise.nano.mixtures import Batch, copying_batches, mixed_batches
from turnwise.nano.model import NanoShape, build_model

_PRINT_SECONDS = 5.0
_IGNORED = -100
_MOST_TIME_FOR_COPYING = 0.5
_LAST_RATE = 0.02


@dataclass(frozen=True, kw_only=True)
class NanoSettings:
    """How long and how fast to train; the defaults are for one large GPU."""

    copy_steps: int = 6_000
    """At most; the stage ends when the model predicts `copied_enough` of the predictable tokens."""
    copied_enough: float = 0.97
    steps: int = 12_000
    batch_tokens: int = 32_768
    learning_rate: float = 2e-3
    warm_up: int = 200
    weight_decay: float = 0.1
    minutes: float = math.inf
    """The schedule is shortened to fit; a run that fits anyway depends only on the seed."""


def train(folder: Path, *, seed: int, device: str, settings: NanoSettings, shape: NanoShape) -> LlamaForCausalLM:
    """Train on the folder's rows and save the model next to them, in bf16."""
    rows = load_rows(folder)
    model = build_model(shape, seed=seed)
    nn.Module.to(model, device)
    learner = NanoLearner(model, settings)
    clock = Clock(minutes=settings.minutes)
    learn_copying(learner, clock, seed=seed, device=device)
    learn_mixture(learner, rows, clock, seed=seed, device=device)
    nn.Module.to(model, torch.bfloat16)
    model.save_pretrained(folder)
    return model


class Clock:
    """Tracks how much of the allowed time is used, and when to print again."""

    def __init__(self, *, minutes: float) -> None:
        self._start = self._printed = time.monotonic()
        self._allowed = 60 * minutes

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start

    @property
    def used(self) -> float:
        """Share of the allowed time that has passed."""
        return self.seconds / self._allowed

    def due(self) -> bool:
        """Whether the last line is a few seconds old; true at most once in that time."""
        now = time.monotonic()
        due = now - self._printed >= _PRINT_SECONDS
        self._printed = now if due else self._printed
        return due


class NanoLearner:
    """The model, its optimiser, and running metrics that stay on the device until they are printed."""

    def __init__(self, model: LlamaForCausalLM, settings: NanoSettings) -> None:
        self.model, self.settings = model, settings
        fused = model.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(_groups(model, settings.weight_decay), betas=(0.9, 0.95), fused=fused)
        self.steps = 0
        self.loss = self.accuracy = torch.zeros((), device=model.device)

    def step(self, batch: Batch, *, rate: float) -> None:
        """One update at `rate` times the learning rate, less while warming up."""
        warm = min(1.0, (self.steps + 1) / self.settings.warm_up)
        for group in self.optimizer.param_groups:
            group["lr"] = warm * rate * self.settings.learning_rate
        loss, accuracy = self._measure(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        self.loss, self.accuracy = loss.detach(), self.accuracy.lerp(accuracy, 0.05)

    def _measure(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Mean loss and accuracy over the trained tokens."""
        device = batch.ids.device.type
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = forward(self.model, batch.ids, batch.starts)[:, :-1]
        trained = batch.trained[:, 1:]
        targets = batch.ids[:, 1:].masked_fill(~trained, _IGNORED)
        loss = cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=_IGNORED)
        return loss, (logits.argmax(-1) == targets).sum() / trained.sum()

    def __str__(self) -> str:
        rate = self.optimizer.param_groups[0]["lr"]
        return f"step {self.steps}, loss {self.loss:.3f}, accuracy {self.accuracy:.3f}, rate {rate:.1e}"


def forward(model: LlamaForCausalLM, ids: Tensor, starts: Tensor) -> Tensor:
    """Logits of packed rows: sequences count their own positions and never see each other."""
    index = torch.arange(ids.shape[1], device=ids.device)
    positions = index - torch.where(starts, index, 0).cummax(dim=1).values
    sequence = starts.cumsum(dim=1)
    visible = (sequence[:, None, :, None] == sequence[:, None, None, :]) & (index[:, None] >= index)
    return model(input_ids=ids, position_ids=positions, attention_mask=visible, use_cache=False).logits


def learn_copying(learner: NanoLearner, clock: Clock, *, seed: int, device: str) -> None:
    """Train on copying data until enough is copied, at a constant rate."""
    settings = learner.settings
    for batch in copying_batches(settings.batch_tokens, seed=seed, device=device):
        learner.step(batch, rate=1.0)
        if clock.due():
            print(f"{clock.seconds:6.1f} s  copying: {learner}", flush=True)
        # Read rarely: each look at the accuracy waits for the device.
        copies = learner.steps % 50 == 0 and float(learner.accuracy) >= settings.copied_enough
        if copies or learner.steps >= settings.copy_steps or clock.used > _MOST_TIME_FOR_COPYING:
            break
    print(f"{clock.seconds:6.1f} s  copying ends: {learner}", flush=True)


def learn_mixture(learner: NanoLearner, rows: Packed, clock: Clock, *, seed: int, device: str) -> None:
    """Train on the mixture while the rate follows a cosine."""
    settings, used_before = learner.settings, clock.used
    batches = mixed_batches(rows, settings.batch_tokens, seed=seed, device=device)
    for step in count():
        # Steps and time share one schedule: whichever runs out first ends it.
        progress = max(step / settings.steps, (clock.used - used_before) / (1 - used_before))
        if progress >= 1:
            break
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        learner.step(next(batches), rate=_LAST_RATE + (1 - _LAST_RATE) * cosine)
        if clock.due():
            print(f"{clock.seconds:6.1f} s  mixture {progress:.0%}: {learner}", flush=True)
    print(f"{clock.seconds:6.1f} s  mixture ends: {learner}", flush=True)


def _groups(model: LlamaForCausalLM, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay; gains and the embedding, which is also the output, do not."""
    named = list(model.named_parameters())
    decayed = [value for name, value in named if value.ndim == 2 and "embed" not in name]
    others = [value for name, value in named if value.ndim != 2 or "embed" in name]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
