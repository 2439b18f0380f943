"""Put weights from a folder into a model that is being served: a whole model, or an adapter over the one it has.

Everything is checked before the first tensor changes. Only safetensors and JSON are read; nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from turnwise.adapter_folders import CONFIG, WEIGHTS
from turnwise.runs.checkpoints import require_whole

_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_CausalLM: Any = AutoModelForCausalLM  # its stubs lack `use_safetensors`


class Reloader:
    """Changes a model in place: `Reloader(model).load(folder)`. Call it while nothing samples from the model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._parameters = dict(model.named_parameters())
        self._base: dict[str, Tensor] = {}
        """What is under the adapter, for the weights that it changes."""

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """A whole model in Hugging Face layout."""
        require_whole(folder)
        with ExitStack() as stack:
            files = [
                stack.enter_context(safe_open(file, framework="pt")) for file in sorted(folder.glob("*.safetensors"))
            ]
            found = {name: file for file in files for name in file.keys()}  # noqa: SIM118
            if not found.keys() >= self._parameters.keys():  # experts have other names on disk
                return self._copy(_by_module_name(folder))
            shapes = {name: found[name].get_slice(name).get_shape() for name in self._parameters}
            self._require_shapes(shapes)
            for name, parameter in self._parameters.items():
                parameter.copy_(found[name].get_tensor(name))
        self._base.clear()

    @torch.no_grad()
    def load_adapter(self, folder: Path) -> None:
        """A LoRA in peft's layout, merged into the weights under it."""
        require_whole(folder)
        config = json.loads((folder / CONFIG).read_text())
        scale = float(config["lora_alpha"]) / int(config["r"])
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            deltas = {name: scale * (up @ down) for name, down, up in _pairs(file)}
        self._require_shapes({name: list(delta.shape) for name, delta in deltas.items()})
        for name, base in self._base.items():
            self._parameters[name].copy_(base)
        for name, delta in deltas.items():
            weight = self._parameters[name]
            base = self._base.setdefault(name, weight.detach().clone())
            weight.copy_(base + delta.to(base))

    def _copy(self, tensors: dict[str, Tensor]) -> None:
        self._require_shapes({name: list(tensor.shape) for name, tensor in tensors.items()})
        if missing := self._parameters.keys() - tensors.keys():
            raise ValueError(f"the folder has no weights for {min(missing)}; it is another model")
        for name, parameter in self._parameters.items():
            parameter.copy_(tensors[name])
        self._base.clear()

    def _require_shapes(self, shapes: dict[str, list[int]]) -> None:
        for name, shape in shapes.items():
            own = self._parameters.get(name)
            if own is None or list(own.shape) != shape:
                there = "has no such weight" if own is None else f"has {list(own.shape)}"
                raise ValueError(f"the folder has {name} of shape {shape}, but the served model {there}")


def _pairs(file: Any) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The adapted weights with their A and B."""
    for name in file.keys():  # noqa: SIM118
        if name.endswith(_A):
            module = name.removesuffix(_A)
            down, up = file.get_tensor(name).float(), file.get_tensor(module + _B).float()
            yield f"{module.removeprefix(_PREFIX)}.weight", down, up


def _by_module_name(folder: Path) -> dict[str, Tensor]:
    """The weights under the names of their modules, as transformers converts them."""
    model = _CausalLM.from_pretrained(folder, dtype="auto", trust_remote_code=False, use_safetensors=True)
    return dict(model.named_parameters())
