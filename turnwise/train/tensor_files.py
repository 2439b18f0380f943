"""Named tensors in safetensors files: one file, or one for each rank, with whole tensors in every file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from turnwise.ranks import Ranks


def dealt(named: Iterable[tuple[str, Tensor]], ranks: Ranks) -> dict[str, Tensor]:
    """The tensors that this rank writes. A whole layer goes to the rank that has least so far.

    All ranks read all tensors, in the same order; each keeps its own in the host's memory.
    """
    if ranks.size == 1:
        return dict(named)
    mine: dict[str, Tensor] = {}
    owners: dict[str, int] = {}
    loads = [0] * ranks.size
    for name, tensor in named:
        owner = owners.setdefault(_layer_of(name), loads.index(min(loads)))
        loads[owner] += tensor.nbytes
        if owner == ranks.rank:
            mine[name] = tensor.detach().cpu()
    return mine


def write_tensors(stem: Path, tensors: Mapping[str, Tensor], ranks: Ranks, **metadata: str) -> None:
    """Write this rank's tensors: `optimizer.safetensors`, or its own of several files."""
    if tensors or ranks.size == 1:
        plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        save_file(plain, file_of(stem, ranks.rank, ranks.size), metadata=metadata or None)


def file_of(stem: Path, rank: int, size: int) -> Path:
    """Where a rank's tensors are: `model.safetensors`, or `model-00002-of-00003.safetensors`."""
    suffix = "" if size == 1 else f"-{rank + 1:05d}-of-{size:05d}"
    return stem.with_name(f"{stem.name}{suffix}.safetensors")


class TensorFiles:
    """The tensors in all files of a stem, read when asked for: `TensorFiles(folder / "model").read(name)`."""

    def __init__(self, stem: Path) -> None:
        whole = file_of(stem, 0, 1)
        files = [whole] if whole.is_file() else sorted(stem.parent.glob(f"{stem.name}-*-of-*.safetensors"))
        opened: list[Any] = [safe_open(file, framework="pt") for file in files]
        self._files = {name: file for file in opened for name in file.keys()}  # noqa: SIM118

    @property
    def names(self) -> Set[str]:
        """The names of all tensors."""
        return self._files.keys()

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        """A tensor, or only some of its rows."""
        file = self._files[name]
        return file.get_tensor(name) if rows == slice(None) else file.get_slice(name)[rows]


def _layer_of(name: str) -> str:
    """`model.layers.3` of `model.layers.3.mlp.up_proj.weight`: files may name a layer's tensors in another way, which
    takes all of them together."""
    found = re.match(r".*?\.\d+(?=\.)", name)
    return found[0] if found else name
