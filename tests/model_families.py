"""Tiny random models of the families in docs/models.md, two layers each, with windows shorter than the contexts."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

WORDS, WINDOW, ROOM = 61, 6, 128
_TOKENS: dict[str, Any] = {"vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
_SIZES: dict[str, Any] = {
    **_TOKENS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": ROOM,
}
_DENSE: dict[str, Any] = {**_SIZES, "num_key_value_heads": 2}
_EXPERTS: dict[str, Any] = {**_DENSE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_MIXTRAL: dict[str, Any] = {**_DENSE, "num_local_experts": 4, "num_experts_per_tok": 2}
_GEMMA: dict[str, Any] = {**_DENSE, "head_dim": 8, "query_pre_attn_scalar": 20, "sliding_window": WINDOW}
_QWEN2_MOE: dict[str, Any] = {**_EXPERTS, "shared_expert_intermediate_size": 24}
_ALTERNATING = ["sliding_attention", "full_attention"]
_GPT2: dict[str, Any] = {**_TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": ROOM}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("gemma", {**_DENSE, "head_dim": 8}),
    # Small bounds, so that they matter at the scores of a random model.
    "gemma2": ("gemma2", {**_GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}),
    "gemma3": ("gemma3_text", {**_GEMMA, "layer_types": _ALTERNATING}),
    "gpt2": ("gpt2", _GPT2),
    "gpt-neox": ("gpt_neox", _SIZES),
    "llama": ("llama", _DENSE),
    "mistral": ("mistral", {**_DENSE, "sliding_window": None}),
    "mistral-window": ("mistral", {**_DENSE, "sliding_window": WINDOW}),
    "mixtral": ("mixtral", {**_MIXTRAL, "router_jitter_noise": 0.1}),
    "mixtral-window": ("mixtral", {**_MIXTRAL, "sliding_window": WINDOW}),
    "olmo2": ("olmo2", _DENSE),
    "olmo3": ("olmo3", {**_DENSE, "sliding_window": WINDOW, "layer_types": _ALTERNATING}),
    "olmoe": ("olmoe", {**_DENSE, "num_experts": 4, "num_experts_per_tok": 2}),
    "opt": ("opt", {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.1}),
    "phi3": ("phi3", _DENSE),
    "phi3-window": ("phi3", {**_DENSE, "sliding_window": WINDOW}),
    "qwen2": ("qwen2", _DENSE),
    "qwen2-window": ("qwen2", {**_DENSE, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen2-moe": ("qwen2_moe", _QWEN2_MOE),
    "qwen2-moe-window": ("qwen2_moe", {**_QWEN2_MOE, "use_sliding_window": True, "sliding_window": WINDOW}),
    "qwen3": ("qwen3", {**_DENSE, "head_dim": 8}),
    "qwen3-moe": ("qwen3_moe", {**_EXPERTS, "head_dim": 8}),
    "smollm3": ("smollm3", {**_DENSE, "no_rope_layers": [1, 0]}),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "bloom": (
        "bloom",
        {**_TOKENS, "n_head": 4, "n_layer": 2, "hidden_size": 32},
        "in its own way",
        "in its own way",
    ),
    "cohere": ("cohere", _DENSE, "changes its logits", "changed after the last layer"),
    "deepseek-v3": (
        "deepseek_v3",
        {
            **_SIZES,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 24,
            "kv_lora_rank": 8,
            "q_lora_rank": 8,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "num_key_value_heads": 4,
        },
        "",
        "keys of 4 heads of width 16 and values of 4 heads of width 8",
    ),
    "gpt-oss": (
        "gpt_oss",
        {**_MIXTRAL, "head_dim": 8, "sliding_window": WINDOW},
        "attention sinks",
        "attention sinks",
    ),
    "lfm2": ("lfm2", {**_DENSE, "layer_types": ["conv", "full_attention"]}, "see each other", "keep a state beside"),
    "llama4": (
        "llama4_text",
        {**_DENSE, "num_local_experts": 2, "head_dim": 8, "attention_chunk_size": 8, "moe_layers": [1]},
        "no trunk separate from its head",
        "chunked_attention layers",
    ),
    "mamba": ("mamba", {**_SIZES, "state_size": 4}, "see each other", "keep a state beside"),
    "phimoe": ("phimoe", _MIXTRAL, "chooses experts at random", ""),
    "phimoe-window": (
        "phimoe",
        {**_MIXTRAL, "sliding_window": WINDOW},
        "chooses experts at random",
        "does not pass it to its attention",
    ),
    "stablelm": ("stablelm", _DENSE, "does not pass options", "does not pass options"),
}
"""Family and sizes, why the learner refuses it, and why the engine does; an empty reason: it does not."""


def make_family(
    name: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> PreTrainedModel:
    """A model of the family with random weights, large enough that every input matters."""
    family, sizes = FAMILIES[name] if name in FAMILIES else REFUSED[name][:2]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes), dtype=dtype)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            one = parameter.dim() == 1 and not family.startswith("gemma")  # whose norms multiply by 1 + weight
            parameter.copy_(torch.randn(parameter.shape, generator=noise) * 0.25 + one)
    model.tie_weights()
    return model.to(device).eval()
