"""Very small random models of the architectures that must work, and ragged batches for them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from turnwise.batch import TokenBatch
from turnwise.rollout.packing import pack
from turnwise.types import Group, StopReason, Trajectory, Turn

WORDS = 61
_COMMON: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**_COMMON, tie_word_embeddings=False),
    "smollm2": LlamaConfig(**{**_COMMON, "num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 24}),
    "qwen2": Qwen2Config(**_COMMON, tie_word_embeddings=True),
    "qwen2-sliding": Qwen2Config(**_COMMON, use_sliding_window=True, sliding_window=4, max_window_layers=1),
    "qwen3": Qwen3Config(**_COMMON, head_dim=8),
    "gpt2": GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=2, n_head=4, n_positions=128),
}


def make_model(name: str, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A model of a known shape with random weights, large enough that every input matters."""
    model = AutoModelForCausalLM.from_config(CONFIGS[name], dtype=dtype)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=noise) * 0.2 + (parameter.dim() == 1))
    model.tie_weights()
    return model


def make_batch(turns: Sequence[Sequence[tuple[int, int]]], *, seed: int = 0, truncated: bool = False) -> TokenBatch:
    """One trajectory per entry, made of (prompt tokens, sampled tokens) turns with random ids."""
    rng = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [rng.randrange(WORDS) for _ in range(count)]

    trajectories = [
        Trajectory(
            id=f"t{number}",
            turns=[Turn(prompt_ids=ids(prompt), sampled_ids=ids(sampled)) for prompt, sampled in shape],
            stop=StopReason.MAX_TURNS if truncated else StopReason.DONE,
            terminated=not truncated,
            truncated=truncated,
        )
        for number, shape in enumerate(turns)
    ]
    return pack([Group(id="g", trajectories=trajectories)])


RAGGED = [[(3, 2), (2, 4)], [(1, 1)], [(5, 0), (2, 12)], [(1, 30)], [(2, 3), (1, 1), (4, 2)]]
"""Sequences of 11, 2, 19, 31 and 13 tokens."""
