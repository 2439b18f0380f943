"""Getting a causal language model ready: load it, choose what trains, check that it can be packed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from turnwise.exactness import own_memory
from turnwise.policy.logprobs import Head
from turnwise.policy.models import resolve_model
from turnwise.policy.packed import Layout, packed_hidden
from turnwise.policy.text_lora import is_adapter

Precision = Literal["fp32", "bf16"]
_CausalLM: Any = AutoModelForCausalLM  # whose stubs do not know `output_loading_info`
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
Train = Literal["all", "lora"] | Sequence[str]


def load_model(name: str | Path, *, dtype: Precision, device: str | torch.device) -> tuple[PreTrainedModel, Any]:
    """A causal language model and its tokenizer: `nano`, `smollm2-135m`, a local folder or a name of the hub."""
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
    with without_progress_bars():
        model, found = _CausalLM.from_pretrained(
            name,
            dtype=PRECISIONS[dtype],
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    if missing := sorted(found["missing_keys"]):
        raise ValueError(
            f"{name!r} has no weights for {missing[0]} (one of {len(missing)} that are missing), which would be random "
            "numbers; copy the model again, all of its files"
        )
    own_memory(model)
    return model.to(device), tokenizer


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Small files need no bars of transformers across a run's own screen."""
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
    return Head(
        weight_Vd=layer.weight, bias_V=layer.bias, softcap=getattr(model.config, "final_logit_softcapping", None)
    )


def choose_trainable(model: PreTrainedModel, train: Train | None, *, has_adapter: bool) -> None:
    """Freeze all but the chosen parameters; None: the adapter if there is one, else everything."""
    train = train if train is not None else "lora" if has_adapter else "all"
    if train == "lora" and not has_adapter:
        raise ValueError("train='lora' but there is no adapter; give lora=LoraSettings()")
    if train == "all" and has_adapter:
        raise ValueError("train='all' would train the base under its LoRA; leave lora out, or name the parameters")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(_is_chosen(name, train))
    if not isinstance(train, str):
        _require_matches(model, train)


def remove_dropout(model: nn.Module) -> None:
    """Log-probs must be those of the distribution that was sampled, and nothing is dropped when sampling."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


@torch.no_grad()
def check_packing(model: PreTrainedModel) -> None:
    """Run a few tokens to see that packed sequences are blind to each other and that the head is the whole head."""
    head = head_of(model)
    ids_T = torch.arange(9, device=model.device) % head.weight_Vd.shape[0]
    length_S = torch.tensor([5, 4], device=model.device)
    together, logits = _run(model, ids_T, length_S)
    alone = torch.cat([_run(model, part, part.new_tensor([part.numel()]))[0] for part in ids_T.split([5, 4])])
    # Another first sequence must leave the second one as it was, to the last bit: a leak may be small.
    other, _ = _run(model, torch.cat([ids_T[:5].flip(0), ids_T[5:]]), length_S)
    leaks = not torch.equal(other[5:], together[5:])
    if leaks or _distance(together, alone) > _tolerance(together.dtype):
        raise ValueError(
            f"in {type(model).__name__} packed sequences see each other: its layers mix tokens outside of attention, "
            "as convolutions and state-space layers do; use a model of the Llama, Qwen or GPT-2 kind"
        )
    ours = together.float() @ head.weight_Vd.float().T + (0 if head.bias_V is None else head.bias_V.float())
    if head.softcap is not None:
        ours = head.softcap * torch.tanh(ours / head.softcap)
    if _distance(ours, logits.float()) > _tolerance(together.dtype):
        raise ValueError(
            f"{type(model).__name__} changes its logits after the last layer in a way that is not supported; "
            "use a model whose logits are its lm_head's, with or without final_logit_softcapping"
        )


def _require_causal(name: str) -> None:
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{name!r} is neither a folder with a transformers model nor a model that could be fetched: {error}"
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
            f"{name!r} has no weights in safetensors, and no others are read, because loading them may run code; "
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


def _run(model: PreTrainedModel, ids_T: Tensor, length_S: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden states by our way in, and logits by the model's own."""
    position_T = torch.cat([torch.arange(length, device=ids_T.device) for length in length_S.tolist()])
    layout = Layout.of(length_S)
    hidden_Td = packed_hidden(model, ids_T, position_T, layout)
    output = model(input_ids=ids_T[None], position_ids=position_T[None], use_cache=False, layout=layout)
    return hidden_Td, output.logits[0]


def _distance(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm().clamp_min(1e-30))


def _tolerance(dtype: torch.dtype) -> float:
    return 1e-4 if dtype == torch.float32 else 5e-2
