"""Prepare a causal language model: load it, choose what trains, check that it can be packed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from turnwise.exactness import own_memory
from turnwise.model_attention import as_transformers_runs_it, relative_distance, rounding
from turnwise.policy.logprobs import Head
from turnwise.policy.models import resolve_model
from turnwise.policy.packed import Layout, packed_hidden
from turnwise.policy.text_lora import is_adapter

Precision = Literal["fp32", "bf16"]
_CausalLM: Any = AutoModelForCausalLM  # its stubs lack `output_loading_info`
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
Train = Literal["all", "lora"] | Sequence[str]
_CHOOSES_BY_CHANCE = frozenset({"phimoe"})
"""Rare enough that a check with a few tokens would not find it."""
_ROUTER_NOISE = ("jitter_noise", "input_jitter_noise")


def load_model(name: str | Path, *, dtype: Precision, device: str | torch.device) -> tuple[PreTrainedModel, Any]:
    """A causal language model and its tokenizer: `nano`, `smollm2-135m`, a local folder or a name on the hub.

    On the device `meta` no weights are read.
    """
    if dtype not in PRECISIONS:
        raise ValueError(f"dtype is {dtype!r}; choose one of {', '.join(PRECISIONS)}")
    if isinstance(name, Path) and not name.is_dir():
        raise ValueError(f"there is no folder {str(name)!r}; give a model's folder, or a name as a string")
    name = resolve_model(str(name))
    _require_causal(name)
    _require_safetensors(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{name!r} has no tokenizer that loads; save one there with tokenizer.save_pretrained ({error})"
        ) from error
    if torch.device(device).type == "meta":
        with torch.device("meta"):
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
            return _CausalLM.from_config(config, dtype=PRECISIONS[dtype], trust_remote_code=False), tokenizer
    model: Any = _whole_model(name, PRECISIONS[dtype])
    own_memory(model)
    return model.to(device), tokenizer


def read_weights(folder: Path) -> dict[str, Tensor]:
    """A saved model's weights under the names of its modules; files use other names for experts and some heads."""
    return dict(_whole_model(str(folder), "auto").named_parameters())


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Small files need no progress bars of transformers across a run's own screen."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def head_of(model: PreTrainedModel) -> Head:
    """The model's last layer."""
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear:
        raise ValueError(
            f"the head of {type(model).__name__} is {type(layer).__name__}, not a plain linear layer; "
            "use a language model with an lm_head, and leave the head out of LoRA's targets"
        )
    softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    return Head(weight_Vd=layer.weight, bias_V=layer.bias, softcap=softcap)


def choose_trainable(model: PreTrainedModel, train: Train | None, *, has_adapter: bool) -> None:
    """Freeze all but the chosen parameters; None: the adapter if there is one, otherwise everything."""
    train = train if train is not None else "lora" if has_adapter else "all"
    if train == "lora" and not has_adapter:
        raise ValueError("train='lora' but there is no adapter; give lora=LoraSettings()")
    if train == "all" and has_adapter:
        raise ValueError("train='all' would train the base under its LoRA; omit lora, or name the parameters")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(_is_chosen(name, train))
    if not isinstance(train, str):
        _require_matches(model, train)


def fuse_layers(model: nn.Module) -> None:
    """Compile each layer by itself."""
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.compile(dynamic=True)


def remove_dropout(model: nn.Module) -> None:
    """Turn dropout off: log-probs must belong to the distribution that was sampled, and sampling drops nothing."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():  # families that call dropout as a function store the rate as a number
            if isinstance(value, float) and (name.endswith(("dropout", "layerdrop")) or name in _ROUTER_NOISE):
                setattr(module, name, 0.0)


def require_finite(model: nn.Module) -> None:
    """ValueError that names a non-finite weight: every score would be NaN."""
    for name, parameter in model.named_parameters():
        # One pass without a temporary of the weight's size: both propagate NaN.
        if parameter.numel() and not all(bool(end.isfinite()) for end in parameter.detach().aminmax()):
            broken = int((~parameter.isfinite()).sum())
            raise ValueError(
                f"the model's weight {name} has NaN or infinity in {broken:,} of {parameter.numel():,} places; its "
                "file is damaged or its training diverged: load an earlier checkpoint or download the model again"
            )


@torch.no_grad()
def check_packing(model: PreTrainedModel) -> None:
    """Run a few tokens to check that packed sequences match transformers and that the head is all of it."""
    require_finite(model)
    head = head_of(model)
    if model.config.model_type in _CHOOSES_BY_CHANCE:
        raise ValueError(
            f"{type(model).__name__} chooses experts at random while it trains, so it cannot score what was "
            "sampled; use one of the families in docs/models.md"
        )
    if model.base_model is model:
        raise ValueError(f"{type(model).__name__} has no trunk separate from its head; use one in docs/models.md")
    ids_T = torch.arange(9, device=model.device) % head.weight_Vd.shape[0]
    lengths = [5, 4]
    together = _packed(model, ids_T, lengths)
    if not bool(together.isfinite().all()):
        raise ValueError(f"{type(model).__name__} overflows in {model.dtype} although its weights are finite; use fp32")
    _require_blind(model, ids_T, lengths)
    with as_transformers_runs_it(model):
        parts = [part[None] for part in ids_T.split(lengths)]
        alone = torch.cat([model.base_model(input_ids=part, use_cache=False)[0][0] for part in parts])
        logits = torch.cat([model(input_ids=part, use_cache=False).logits[0] for part in parts])
    distance = relative_distance(together, alone)
    if distance > rounding(model):
        raise ValueError(
            f"{type(model).__name__} deviates by {distance:.0%} when packed: it needs more than "
            "tokens and positions, or draws random numbers while it trains; use one of the families in docs/models.md"
        )
    _require_whole_head(model, head, together, logits)


def _whole_model(name: str, dtype: torch.dtype | Literal["auto"]) -> PreTrainedModel:
    with without_progress_bars():
        model, found = _CausalLM.from_pretrained(
            name, dtype=dtype, output_loading_info=True, trust_remote_code=False, use_safetensors=True
        )
    if missing := sorted(found["missing_keys"]):
        raise ValueError(
            f"{name!r} has no weights for {missing[0]} (one of {len(missing)} that are missing), which would be random "
            "numbers; copy the model again, all of its files"
        )
    return model


def _require_causal(name: str) -> None:
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{name!r} is neither a folder with a transformers model nor a model that could be downloaded: {error}"
        ) from error
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ValueError(
            f"{name!r} is a {config.model_type} model, not a causal language model; "
            "use one that predicts the next token, such as a Llama or Qwen"
        )


def _require_safetensors(name: str) -> None:
    """ValueError for a folder whose weights are pickled: unpickling runs whatever the file says."""
    if Path(name).is_dir() and not any(Path(name).glob("*.safetensors")):
        raise ValueError(
            f"{name!r} has no weights in safetensors; others are not read, because loading them may run code; "
            "convert a model that you trust with model.save_pretrained"
        )


def _is_chosen(name: str, train: Train) -> bool:
    if train == "all":
        return True
    return is_adapter(name) if train == "lora" else any(fnmatch(name, pattern) for pattern in train)


def _require_matches(model: PreTrainedModel, patterns: Sequence[str]) -> None:
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            raise ValueError(
                f"no parameter matches {pattern!r}; names look like {names[1]!r}, and * stands for any part"
            )


def _packed(model: PreTrainedModel, ids_T: Tensor, lengths: list[int]) -> Tensor:
    position_T = torch.cat([torch.arange(length, device=ids_T.device) for length in lengths])
    return packed_hidden(model, ids_T, position_T, Layout.of(torch.tensor(lengths, device=ids_T.device)))


def _require_blind(model: PreTrainedModel, ids_T: Tensor, lengths: list[int]) -> None:
    """Feed NaN to the first sequence: anything that sees it, however small the weight, becomes NaN too.

    Equal bits would be too strict: experts multiply together the tokens that chose them, and a matrix product of
    another size rounds differently.
    """

    def poison(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return torch.cat([torch.full_like(output[:, : lengths[0]], torch.nan), output[:, lengths[0] :]], dim=1)

    hook = model.get_input_embeddings().register_forward_hook(poison)
    try:
        poisoned = _packed(model, ids_T, lengths)
    finally:
        hook.remove()
    if bool(poisoned[lengths[0] :].isnan().any()):
        raise ValueError(
            f"in {type(model).__name__} packed sequences see each other: its layers mix tokens outside attention, "
            "as convolutions and state-space layers do; use one of the families in docs/models.md"
        )


def _require_whole_head(model: PreTrainedModel, head: Head, hidden_Td: Tensor, logits_TV: Tensor) -> None:
    ours = hidden_Td.float() @ head.weight_Vd.float().T + (0 if head.bias_V is None else head.bias_V.float())
    if head.softcap is not None:
        ours = head.softcap * torch.tanh(ours / head.softcap)
    if relative_distance(ours, logits_TV) > rounding(model):
        raise ValueError(
            f"{type(model).__name__} changes its logits after the last layer in a way that is not supported; "
            "use a model whose logits are its lm_head's, with or without final_logit_softcapping"
        )
