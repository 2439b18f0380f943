"""Small random models of the families that the engine must serve."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY, CONTEXT = 97, 160
_DENSE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}
SHAPES = ("llama", "qwen2", "qwen3", "smollm2", "gpt2")


def small_model(shape: str, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A model of the family with random weights, large enough to have opinions."""
    torch.manual_seed(3)
    model: Any
    tokens: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    if shape == "llama":
        model = LlamaForCausalLM(LlamaConfig(**_DENSE, **tokens))
    elif shape == "smollm2":  # a Llama with tied embeddings and three heads to one
        heads = {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 96}
        model = LlamaForCausalLM(LlamaConfig(**{**_DENSE, **heads}, tie_word_embeddings=True, **tokens))
    elif shape == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**_DENSE, **tokens))
    elif shape == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**_DENSE, head_dim=32, **tokens))
    else:
        size = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **size, **tokens))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    return model.to(device=device, dtype=dtype).eval()
