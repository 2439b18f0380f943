"""Weights on disk for engines in other processes: folders that are complete or do not count.

A published model has Hugging Face layout with its head written out (`tie_word_embeddings: false`): a server that keeps
a packed copy of a tied head would not notice that it has changed.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from turnwise.adapter_folders import adapter_of, write_adapter
from turnwise.engine.contract import Weights
from turnwise.runs.checkpoints import Checkpoints

_KEPT = 2
"""A server may still read the folder before the newest."""


class Published:
    """The folders of one policy: `published.write(weights)` returns the path of the newest."""

    def __init__(self, folder: Path, model: PreTrainedModel) -> None:
        self._folders, self._model, self._count = Checkpoints(folder), model, 0
        self.remove()  # what a killed run left

    def write(self, weights: Weights) -> Path:
        """A whole model."""
        return self._write(lambda draft: write_model(draft, self._model, weights.named()))

    def write_adapter(self) -> Path:
        """Only the adapter of the model."""
        found = dict(adapter_of(self._model))
        return self._write(lambda draft: write_adapter(draft, self._model, found))

    def remove(self) -> None:
        """Remove all of them, and the folder around them once no other policy uses it."""
        shutil.rmtree(self._folders.folder, ignore_errors=True)
        with suppress(OSError):
            self._folders.folder.parent.rmdir()

    def _write(self, fill: Any) -> Path:
        self._count += 1
        self._folders.prune(keep=_KEPT - 1)  # first, so that there is room for the new one
        return self._folders.write(self._count, fill).resolve()


def write_model(folder: Path, model: PreTrainedModel, named: Iterator[tuple[str, Tensor]]) -> None:
    """The weights under their names on disk, and a config that says that the head is not tied."""
    state = {name: tensor.detach().to("cpu") for name, tensor in named}
    names = {module: f"{name}.weight" for name, module in model.named_modules()}
    head, embedding = names[model.get_output_embeddings()], names[model.get_input_embeddings()]
    state.setdefault(head, state[embedding])
    state = revert_weight_conversion(model, _apart(state))
    split = split_torch_state_dict_into_shards(state, filename_pattern="model{suffix}.safetensors")
    for file, names in split.filename_to_tensors.items():
        save_file({name: state[name].contiguous() for name in names}, folder / file, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    config = copy.deepcopy(model.config)
    config.get_text_config().tie_word_embeddings = config.tie_word_embeddings = False
    config.architectures = [type(model).__name__.removeprefix("FSDP")]
    config.dtype = str(next(iter(state.values())).dtype).removeprefix("torch.")
    config.save_pretrained(folder)


def _apart(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same with a copy wherever two names share memory, as a tied head does."""
    seen, apart = set[int](), dict[str, Tensor]()
    for name, tensor in state.items():
        apart[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return apart


def has_adapter(model: PreTrainedModel) -> bool:
    """Whether the model has a LoRA."""
    return bool(getattr(model, "peft_config", None)) or any(".lora_A." in name for name, _ in model.named_parameters())
