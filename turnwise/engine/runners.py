"""Run a model on new tokens only: the Llama family with few operations, any other causal LM through transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from turnwise.engine.attention import Attend, Chunk, DecodeAttend, PrefillAttend
from turnwise.engine.memory import CacheShape, SlotCache
from turnwise.expert_routing import Routing
from turnwise.model_attention import (
    ATTENTION,
    Kind,
    as_transformers_runs_it,
    relative_distance,
    rounding,
    use_our_attention,
)
from turnwise.residual_stream import LLAMA_FAMILY


class Runner(Protocol):
    """Turns new tokens into hidden states, and hidden states into logits."""

    shape: CacheShape

    def hidden(self, id_N: Tensor, position_N: Tensor, attend: Attend, routing: Routing | None = None) -> Tensor:
        """Final hidden states `[N, width]`; `attend` stores and reads keys and values, `routing` follows experts."""
        ...

    def logits(self, hidden_B: Tensor) -> Tensor:
        """Next-token logits of some of them."""
        ...


def make_runner(model: PreTrainedModel, capacity: int) -> Runner:
    """The fastest runner that is exact for this model and sessions of up to `capacity` tokens."""
    if is_plain_llama(model, capacity):
        return LlamaRunner(model)
    runner = HookedRunner(model)
    _require_exact(runner, model)
    return runner


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


def is_plain_llama(model: PreTrainedModel, capacity: int) -> bool:
    """Whether the model is a Llama with no feature that our runners lack."""
    config: Any = model.config
    if config.model_type not in LLAMA_FAMILY or config.hidden_act != "silu":
        return False
    rope = getattr(config, "rope_parameters", None) or {}
    plain_rope = rope.get("rope_type", "default") in ("default", "linear", "llama3")
    window = _window(config)
    return plain_rope and (window is None or window >= capacity)


def _window(config: Any) -> int | None:
    """The sliding window, if layers use one."""
    slides = "sliding_attention" in (getattr(config, "layer_types", None) or ["sliding_attention"])
    return getattr(config, "sliding_window", None) if slides else None


class LlamaRunner:
    """Llama, Qwen2, Qwen3, Mistral: the same mathematics as transformers with a third of its operations per layer."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.shape = cache_shape(model)
        body: Any = model.model
        self._embed: nn.Embedding = body.embed_tokens
        self._layers: list[Any] = list(body.layers)
        self._norm, self._rotary = body.norm, body.rotary_emb
        self._head: Any = model.get_output_embeddings()
        self._kind = Kind(scale=self._layers[0].self_attn.scaling)

    def hidden(self, id_N: Tensor, position_N: Tensor, attend: Attend, routing: Routing | None = None) -> Tensor:
        x = functional.embedding(id_N, self._embed.weight).float()  # see residual_stream.py
        cosine, sine = self._rotary(x[None], position_N[None])
        cosine, sine = cosine[0, :, None], sine[0, :, None]
        for number, layer in enumerate(self._layers):
            x = x + self._attention(number, layer, rms_norm(layer.input_layernorm, x), cosine, sine, attend)
            x = x + _mlp(layer.mlp, rms_norm(layer.post_attention_layernorm, x))
        return rms_norm(self._norm, x)

    def logits(self, hidden_B: Tensor) -> Tensor:
        return head_logits(self._head, hidden_B)

    def _attention(self, number: int, layer: Any, x: Tensor, cosine: Tensor, sine: Tensor, attend: Attend) -> Tensor:
        block, head_dim = layer.self_attn, self.shape.head_dim
        query = linear(block.q_proj, x).view(x.shape[0], -1, head_dim)
        key = linear(block.k_proj, x).view(x.shape[0], -1, head_dim)
        value = linear(block.v_proj, x).view(x.shape[0], -1, head_dim)
        if hasattr(block, "q_norm"):
            query, key = rms_norm(block.q_norm, query), rms_norm(block.k_norm, key)
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        out = attend(number, query, key, value, self._kind)
        return linear(block.o_proj, out.reshape(x.shape[0], -1))


def linear(module: Any, x: Tensor) -> Tensor:
    """A linear layer without the module call, unless something (a LoRA) wraps it."""
    return functional.linear(x, module.weight, module.bias) if type(module) is nn.Linear else module(x)


def head_logits(head: Any, hidden_B: Tensor) -> Tensor:
    """The last layer, in single precision where that costs nothing."""
    # Logits near 20 rounded to bf16 are off by up to 0.06: the learner keeps them in fp32.
    if type(head) is nn.Linear and head.bias is None and hidden_B.is_cuda and hidden_B.dtype != torch.float32:
        return torch.mm(hidden_B, head.weight.t(), out_dtype=torch.float32)
    return linear(head, hidden_B)


def rms_norm(module: Any, x: Tensor) -> Tensor:
    """x / rms(x) in the weight's precision; rounded to that of x before the weight, as transformers does."""
    if x.dtype == module.weight.dtype == torch.float32:
        return functional.rms_norm(x, (x.shape[-1],), module.weight, module.variance_epsilon)
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + module.variance_epsilon)
    return (module.weight * normed.to(x.dtype)).to(module.weight.dtype)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions: x cos + (−x₂, x₁) sin."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def _mlp(block: Any, x: Tensor) -> Tensor:
    return linear(block.down_proj, functional.silu(linear(block.gate_proj, x)) * linear(block.up_proj, x))


@dataclass(frozen=True, kw_only=True)
class _Slots:
    """Hands a layer's new tokens to the engine's slots."""

    shape: CacheShape
    write_and_read: Attend
    routing: Routing | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, kind: Kind) -> Tensor:
        """From [1, heads, N, width] each to [1, N, heads, width]."""
        query_N, key_N, value_N = (states[0].transpose(0, 1) for states in (query, key, value))
        kept = (self.shape.kv_heads, self.shape.head_dim)
        if key_N.shape[1:] != kept or value_N.shape[1:] != kept:
            raise ValueError(
                f"the engine keeps keys and values of {kept[0]} heads of width {kept[1]}, but layer {layer} has "
                f"keys of {key_N.shape[1]} heads of width {key_N.shape[2]} and values of {value_N.shape[1]} heads of "
                f"width {value_N.shape[2]}; use one of the families in docs/models.md"
            )
        return self.write_and_read(layer, query_N, key_N, value_N, kind)[None]


class HookedRunner:
    """Any causal LM whose attention goes through transformers' attention interface."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.shape = cache_shape(model)
        self._model: Any = model
        self._head: Any = model.get_output_embeddings()
        self._softcap: float | None = getattr(model.config.get_text_config(), "final_logit_softcapping", None)

    def hidden(self, id_N: Tensor, position_N: Tensor, attend: Attend, routing: Routing | None = None) -> Tensor:
        config, usual = self._model.config, self._model.config._attn_implementation
        slots = _Slots(shape=self.shape, write_and_read=attend, routing=routing)
        if usual != ATTENTION:  # leave a learner's model unchanged: its thread may be running it now
            config._attn_implementation = ATTENTION
        try:
            body = self._model.base_model
            out = body(input_ids=id_N[None], position_ids=position_N[None], use_cache=False, layout=slots)
        finally:
            if usual != ATTENTION:
                config._attn_implementation = usual
        return out.last_hidden_state[0]

    def logits(self, hidden_B: Tensor) -> Tensor:
        logits = head_logits(self._head, hidden_B)
        return logits if self._softcap is None else self._softcap * torch.tanh(logits / self._softcap)


class MixedRunner:
    """Two models on the same tokens, whose logits are mixed. The second one's layers come after the first one's."""

    def __init__(self, first: Runner, second: Runner, mix: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._first, self._second, self._mix = first, second, mix
        self.shape = replace(first.shape, layers=first.shape.layers + second.shape.layers)

    def hidden(self, id_N: Tensor, position_N: Tensor, attend: Attend, routing: Routing | None = None) -> Tensor:
        """Both models' states, side by side."""
        own = self._first.shape.layers

        def attend_after(layer: int, query: Tensor, key: Tensor, value: Tensor, kind: Kind) -> Tensor:
            return attend(own + layer, query, key, value, kind)

        parts = self._first.hidden(id_N, position_N, attend), self._second.hidden(id_N, position_N, attend_after)
        return torch.cat(parts, dim=1)

    def logits(self, hidden_B: Tensor) -> Tensor:
        first, second = hidden_B.chunk(2, dim=1)
        return self._mix(self._first.logits(first.contiguous()), self._second.logits(second.contiguous()))


@torch.no_grad()
def _require_exact(runner: Runner, model: PreTrainedModel) -> None:
    """Refuse a model that the engine runs wrongly: a prompt and two tokens must give the logits of transformers."""
    device, prompt, count = model.device, 4, 6
    ids = position = torch.arange(count, device=device)
    slot = torch.zeros_like(ids)
    with as_transformers_runs_it(model):
        expected = model(input_ids=ids[None], use_cache=False).logits[0]
        use_our_attention(model)  # raises if the model does not allow it
    cache = SlotCache(runner.shape, slots=1, capacity=count, device=device)
    chunk = Chunk(slot=0, start=0, length=prompt, position=0)
    attends: list[Attend] = [PrefillAttend(cache, [chunk], slot[:prompt], position[:prompt])]
    attends += [DecodeAttend(cache, slot[:1], position[token : token + 1]) for token in range(prompt, count)]
    parts = zip(attends, ids.split([prompt, 1, 1]), position.split([prompt, 1, 1]), strict=True)
    ours = torch.cat([runner.logits(runner.hidden(id_N, position_N, attend)) for attend, id_N, position_N in parts])
    distance = relative_distance(ours, expected)
    if not distance <= rounding(model):
        raise ValueError(
            f"the engine cannot run {type(model).__name__}: its logits are off by {distance:.0%} of those of "
            "transformers. Its layers may keep a state beside keys and values, or its logits may be changed after the "
            "last layer; if dropout is on, call model.eval(). docs/models.md lists what is supported"
        )
