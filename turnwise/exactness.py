"""What decides the last bits of a matrix product besides its numbers, and how Turnwise keeps that fixed.

Matrix libraries choose kernels by the CPU, by the number of threads and, for products of a few rows, by the address of
their operands. An episode that decodes alone is such a product, and weights read from a checkpoint do not lie where
fresh ones lie; so a resumed run could differ from one that was left alone. Two measures, each enough where it applies:

- `own_memory` gives every weight an address that torch chose itself, on any CPU and with any library;
- `ask_for_steady_kernels` tells Intel's library (also used on AMD) to ignore addresses altogether.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

ALIGNMENT = 64
"""Bytes: torch puts every tensor that it allocates on the CPU at a multiple of this."""
_MKL_MODE = "MKL_CBWR"


def ask_for_steady_kernels() -> None:
    """Have MKL choose kernels by shape alone, unless the user chose a mode. It reads this at its first product."""
    os.environ.setdefault(_MKL_MODE, "AUTO,STRICT")


def own_memory(module: nn.Module, *, also_aligned: bool = True) -> None:
    """Copy the weights of a module on the CPU into memory that torch allocated, one by one and in place.

    Weights that were loaded may be a file's own pages: badly aligned, and gone when the file is cut short.
    `also_aligned=False` leaves those alone that are aligned.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.device.type == "cpu" and (also_aligned or tensor.data_ptr() % ALIGNMENT):
            tensor.data = tensor.data.clone()


def describe_arithmetic() -> dict[str, str]:
    """The CPU and the matrix library: runs are equal to the bit only where these are equal."""
    import torch

    library = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    blas = library[1] if library else "unknown"
    mode = f" {os.environ.get(_MKL_MODE, 'default')}" if blas == "mkl" else ""
    return {"cpu": f"{_cpu_name()}, {torch.backends.cpu.get_cpu_capability()}", "blas": blas + mode}


def changed_circumstances(then: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """What differs of two descriptions of a run's circumstances, for those keys that both have."""
    return [f"{name} was {then[name]}, now {now[name]}" for name in now if name in then and then[name] != now[name]]


def _cpu_name() -> str:
    """The CPU's model name where the system tells it, else its architecture."""
    with suppress(OSError):  # only Linux has this file
        if found := re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return found[1].strip()
    return platform.processor() or platform.machine()
