"""A tiny model whose words are whole answers: it says one of them at random, then ends its turn.

So even the agent of a framework, which needs well-formed calls, can be trained in a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from tests.policy.tokenizers_for_chat import train_tokenizer
from tests.policy.tool_templates import QWEN

_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_SURE = 4.0


def save_macro_model(folder: Path, answers: Sequence[str], *, context: int) -> None:
    """Write a model and its tokenizer."""
    tokenizer: Any = train_tokenizer(special=_SPECIAL, words=list(answers), end="<|im_end|>", template=QWEN)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config)
    words = tokenizer.convert_tokens_to_ids(list(answers))
    with torch.no_grad():
        # The first two dimensions say which kind of token was read last: an answer, or anything else.
        read, said = model.model.embed_tokens.weight, model.lm_head.weight
        read[:, 0], said[:, :2] = 1.0, -_SURE
        read[words, 0], read[words, 1] = 0.0, 1.0
        said[words, 0], said[tokenizer.eos_token_id, 1] = _SURE, _SURE
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
