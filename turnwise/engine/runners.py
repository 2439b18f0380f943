"""Run a model on new tokens only: the Llama family with few operations, any other causal LM through transformers."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from turnwise.engine.attention import Attend
from turnwise.engine.memory import CacheShape


class Runner(Protocol):
    """Turns new tokens into hidden states, and hidden states into logits."""

    shape: CacheShape

    def hidden(self, id_N: Tensor, position_N: Tensor, attend: Attend) -> Tensor:
        """Final hidden states `[N, width]`; `attend` stores and reads keys and values."""
        ...

    def logits(self, hidden_B: Tensor) -> Tensor:
        """Next-token logits of some of them."""
        ...


LLAMA_FAMILY = frozenset({"llama", "qwen2", "qwen3", "mistral"})


def make_runner(model: PreTrainedModel) -> Runner:
    """The fastest runner that is exact for this model."""
    return LlamaRunner(model) if is_plain_llama(model) else HookedRunner(model)


def cache_shape(model: PreTrainedModel) -> CacheShape:
    """Read layers and heads from the model's configuration."""
    config: Any = model.config.get_text_config()
    heads = config.num_attention_heads
    return CacheShape(
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=model.dtype,
    )


def require_served(model: PreTrainedModel, capacity: int) -> None:
    """Refuse a model whose attention the engine would compute wrongly."""
    config: Any = model.config.get_text_config()
    window = _window(config)
    if window is not None and window < capacity:
        raise ValueError(
            f"the model attends to a window of {window} tokens; set the engine's capacity (rollout.context in a "
            "recipe) to at most that"
        )
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, name, None) is not None:
            raise ValueError(f"the engine does not compute {name} of {config.model_type}; use another model or engine")


def _window(config: Any) -> int | None:
    """The sliding window, where layers use one."""
    slides = "sliding_attention" in (getattr(config, "layer_types", None) or ["sliding_attention"])
    return getattr(config, "sliding_window", None) if slides else None


def is_plain_llama(model: PreTrainedModel) -> bool:
    """Whether the model is the Llama recipe with nothing that our own runners leave out."""
    config: Any = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    plain_rope = rope.get("rope_type", "default") in ("default", "linear", "llama3")
    return config.model_type in LLAMA_FAMILY and plain_rope and config.hidden_act == "silu"


class LlamaRunner:
    """Llama, Qwen2, Qwen3, Mistral: the same mathematics as transformers with a third of its operations per layer."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.shape = cache_shape(model)
        body: Any = model.model
        self._embed: nn.Embedding = body.embed_tokens
        self._layers: list[Any] = list(body.layers)
        self._norm, self._rotary = body.norm, body.rotary_emb
        self._head: Any = model.get_output_embeddings()
        self._scale = self._layers[0].self_attn.scaling

    def hidden(self, id_N: Tensor, position_N: Tensor, attend: Attend) -> Tensor:
        x = functional.embedding(id_N, self._embed.weight)
        cosine, sine = self._rotary(x[None], position_N[None])
        cosine, sine = cosine[0, :, None], sine[0, :, None]
        for number, layer in enumerate(self._layers):
            x = x + self._attention(number, layer, rms_norm(layer.input_layernorm, x), cosine, sine, attend)
            x = x + _mlp(layer.mlp, rms_norm(layer.post_attention_layernorm, x))
        return rms_norm(self._norm, x)

    def logits(self, hidden_B: Tensor) -> Tensor:
        return linear(self._head, hidden_B)

    def _attention(self, number: int, layer: Any, x: Tensor, cosine: Tensor, sine: Tensor, attend: Attend) -> Tensor:
        block, head_dim = layer.self_attn, self.shape.head_dim
        query = linear(block.q_proj, x).view(x.shape[0], -1, head_dim)
        key = linear(block.k_proj, x).view(x.shape[0], -1, head_dim)
        value = linear(block.v_proj, x).view(x.shape[0], -1, head_dim)
        if hasattr(block, "q_norm"):
            query, key = rms_norm(block.q_norm, query), rms_norm(block.k_norm, key)
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        out = attend(number, query, key, value, self._scale)
        return linear(block.o_proj, out.reshape(x.shape[0], -1))


def linear(module: Any, x: Tensor) -> Tensor:
    """A linear layer without the module call, unless something (a LoRA) wraps it."""
    return functional.linear(x, module.weight, module.bias) if type(module) is nn.Linear else module(x)


def rms_norm(module: Any, x: Tensor) -> Tensor:
    """x / rms(x), rounded to the model's precision before the weight, as transformers does."""
    if x.dtype == torch.float32:
        return functional.rms_norm(x, (x.shape[-1],), module.weight, module.variance_epsilon)
    wide = x.float()
    return module.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + module.variance_epsilon)).to(x)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions: x cos + (−x₂, x₁) sin."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def _mlp(block: Any, x: Tensor) -> Tensor:
    return linear(block.down_proj, functional.silu(linear(block.gate_proj, x)) * linear(block.up_proj, x))


_ATTEND: ContextVar[Attend] = ContextVar("turnwise_attend")
_HOOK = "turnwise_engine"


def _hooked_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls: hands the new tokens to the engine's slots."""
    for name in ("softcap", "s_aux", "position_bias"):
        if more.get(name) is not None:
            raise ValueError(f"the engine does not compute attention with {name}; use another model or engine")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    query_N, key_N, value_N = query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1)
    return _ATTEND.get()(module.layer_idx, query_N, key_N, value_N, scale)[None], None


AttentionInterface.register(_HOOK, _hooked_attention)
AttentionMaskInterface.register(_HOOK, lambda *_, **__: None)


class HookedRunner:
    """Any causal LM whose attention goes through transformers' attention interface."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.shape = cache_shape(model)
        self._model: Any = model
        self._body: Any = model.base_model
        self._head: Any = model.get_output_embeddings()

    def hidden(self, id_N: Tensor, position_N: Tensor, attend: Attend) -> Tensor:
        config, usual = self._model.config, self._model.config._attn_implementation
        token = _ATTEND.set(attend)
        config._attn_implementation = _HOOK
        try:
            out = self._body(input_ids=id_N[None], position_ids=position_N[None], use_cache=False)
        finally:
            config._attn_implementation = usual
            _ATTEND.reset(token)
        return out.last_hidden_state[0]

    def logits(self, hidden_B: Tensor) -> Tensor:
        return linear(self._head, hidden_B)
