"""The nano model's shape: a plain Llama, which every engine can load."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from turnwise.policy.nano.tokenizer import BEGIN_ID, END_ID, PAD_ID, VOCABULARY


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of the model; the defaults give 3.7 million parameters (7.3 MB in bf16).

    Reading takes a chain of about three attention steps (previous token, find the document, find the field), so four
    layers are the least that leaves room; width costs less time than depth where kernels are small.
    """

    width: int = 256
    layers: int = 4
    heads: int = 4
    feed_forward: int = 704
    context: int = 512


def build_model(shape: Shape, *, seed: int) -> LlamaForCausalLM:
    """A model with random weights that depend on the seed alone."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.width,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        initializer_range=0.02,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        bos_token_id=BEGIN_ID,
        eos_token_id=END_ID,
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng():  # transformers draws initial weights from the global generator
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
