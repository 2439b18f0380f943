"""Models with one number for an answer, as `turnwise reward-model` saves them: a trunk and a scalar head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from turnwise.policy.text_loading import remove_dropout, require_finite, without_progress_bars
from turnwise.residual_stream import widen_residual

_Classifier: Any = AutoModelForSequenceClassification
_TRAIN = "train one with: turnwise reward-model PAIRS.jsonl"


def read_scalar_config(folder: Path) -> Any:
    """The configuration of a reward model; ValueError for a folder that holds something else."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is not a reward model; {_TRAIN}")
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if config.num_labels != 1:
        raise ValueError(f"{folder} has {config.num_labels} labels; a reward model has one number for an answer")
    return config


def load_scalar_model(folder: Path, *, dtype: torch.dtype | str = "auto") -> tuple[PreTrainedModel, nn.Linear]:
    """A reward model and its head, without dropout."""
    read_scalar_config(folder)
    try:
        with without_progress_bars():
            model, found = _Classifier.from_pretrained(
                folder, trust_remote_code=False, use_safetensors=True, dtype=dtype, output_loading_info=True
            )
    except (OSError, ValueError) as error:
        raise ValueError(f"the reward model {folder} does not load: {error}") from error
    if found["missing_keys"]:
        missing = sorted(found["missing_keys"])[0]
        raise ValueError(f"{folder} has no weights for {missing}, so it is not a reward model; train one from it")
    require_finite(model)
    remove_dropout(model)
    widen_residual(model)
    return model, next(each for each in model.children() if isinstance(each, nn.Linear))


def require_alike(folder: Path, model: PreTrainedModel, tokenizer: Any) -> None:
    """ValueError if a policy of this model and tokenizer cannot have its critic from this reward model."""
    config, own = read_scalar_config(folder), model.config
    found, needed = ((each.model_type, each.hidden_size) for each in (config, own))
    fix = "train one from the policy's model: turnwise reward-model PAIRS.jsonl model=MODEL"
    if found != needed:
        raise ValueError(
            f"train.critic_from: {folder} is a {found[0]} of width {found[1]}, and the policy a {needed[0]} of width "
            f"{needed[1]}; {fix}"
        )
    theirs = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if tokenizer is not None and theirs.get_vocab() != tokenizer.get_vocab():
        raise ValueError(f"train.critic_from: {folder} has another tokenizer than the policy; {fix}")
