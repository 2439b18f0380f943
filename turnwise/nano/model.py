"""The nano model's shape: a plain Llama, which every engine can load, initialised so that it learns to copy early.

Copying takes two heads in a row: one that looks at the previous token, and one that finds the token whose predecessor
was the current one. From random weights the first is slow to appear, because rotary positions alone give a head no
anchor: its queries and keys depend only on the tokens. So all embeddings start with one common channel, and one
head of the first layer starts by looking at the previous token through it. All else is random, and all is trained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from turnwise.nano.tokenizer import BEGIN_ID, END_ID, PAD_ID, VOCABULARY

_SPREAD = 0.02
"""Standard deviation of random weights."""
_COMMON = 3.0
"""The common channel of all embeddings, in standard deviations."""
_SHARPNESS = 5.0
"""How much more the previous token scores in that head than its neighbours, roughly."""
_FAST = 0.1
"""Radians per token: pairs of channels that rotate faster tell neighbours apart."""


@dataclass(frozen=True, kw_only=True)
class NanoShape:
    """Sizes of the model; the defaults give 3.7 million parameters (7.3 MB in bf16).

    Reading takes a chain of about three attention steps (previous token, find the document, find the field), so four
    layers are the minimum; width costs less time than depth when kernels are small.
    """

    width: int = 256
    layers: int = 4
    heads: int = 4
    feed_forward: int = 704
    context: int = 512


def build_model(shape: NanoShape, *, seed: int) -> LlamaForCausalLM:
    """A model with random weights that depend only on the seed."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.width,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        initializer_range=_SPREAD,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        bos_token_id=BEGIN_ID,
        eos_token_id=END_ID,
    )
    with torch.random.fork_rng():  # transformers draws initial weights from the global generator
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    _look_back(model)
    return model


@torch.no_grad()
def _look_back(model: LlamaForCausalLM) -> None:
    """Make the first head attend to the previous token.

    Rotary positions rotate pair f of a head's channels by position * θ_f. Query (1, 0) and key (cos θ_f, sin θ_f) then
    score Σ_f cos(θ_f (distance - 1)), which is largest at distance 1. Slow pairs would only add noise.
    """
    embeddings = model.get_parameter("model.embed_tokens.weight")
    queries, keys = (model.get_parameter(f"model.layers.0.self_attn.{name}_proj.weight") for name in "qk")
    embeddings[:, 0] = _COMMON * _SPREAD
    channel = _COMMON / math.sqrt(1 + (_COMMON**2 - 1) / embeddings.shape[1])  # its size after the norm
    angles = model.model.rotary_emb.inv_freq
    pairs, width = angles.numel(), 2 * angles.numel()
    size = math.sqrt(_SHARPNESS * math.sqrt(width)) / channel * (angles > _FAST)
    queries[:width] = keys[:width] = 0
    queries[:pairs, 0] = size
    keys[:width, 0] = torch.cat([size * angles.cos(), size * angles.sin()])
