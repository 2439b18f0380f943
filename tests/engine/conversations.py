"""Ragged multi-turn conversations played on an engine, and the same judged by transformers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from tests.engine.shapes import VOCABULARY
from turnwise.engine.contract import Completion, SamplingParams
from turnwise.engine.torch_engine import TorchEngine

Played = dict[str, list[tuple[list[int], Completion]]]


def play(
    engine: TorchEngine, params: SamplingParams, *, sessions: int = 9, turns: int = 3, seed: int = 0, longest: int = 14
) -> Played:
    """Every turn brings a few new tokens to every session, all at once."""
    rng = random.Random(seed)
    played: Played = {f"s{n}": [] for n in range(sessions)}
    for _ in range(turns):
        news = {name: [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, longest))] for name in played}
        results = engine.run([(name, ids, params) for name, ids in news.items()])
        for (name, ids), result in zip(news.items(), results, strict=True):
            played[name].append((ids, result))
    return played


def whole(turns: Sequence[tuple[list[int], Completion]]) -> list[int]:
    """The session's full token sequence."""
    return [token for new, result in turns for token in (*new, *result.ids)]


def greedy_by_transformers(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """What `generate` would say."""
    ids = torch.tensor([prompt], device=model.device)
    generate: Any = model.generate
    out = generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, eos_token_id=None)
    return out[0, len(prompt) :].tolist()


def logprobs_by_transformers(
    model: PreTrainedModel, turns: Sequence[tuple[list[int], Completion]], temperature: float = 1.0
) -> torch.Tensor:
    """Log-probs of all sampled tokens from one plain forward over the whole session."""
    ids = torch.tensor([whole(turns)], device=model.device)
    with torch.no_grad():
        log_TV = (model(ids).logits[0].float() / temperature).log_softmax(-1).cpu()
    places, place = [], 0
    for new, result in turns:
        place += len(new)
        places += range(place, place + len(result.ids))
        place += len(result.ids)
    return torch.stack([log_TV[t - 1, int(ids[0, t])] for t in places])
