"""What affects the last bits of a matrix product besides its numbers, and how Turnwise keeps that fixed.

Matrix libraries choose kernels by the CPU, by the number of threads and, for products of a few rows, by the address of
their operands. An episode that decodes alone is such a product, and weights loaded from a checkpoint have other
addresses than fresh ones, so a resumed run could differ from an uninterrupted one. There are two measures, each
sufficient where it applies:

- `own_memory` gives every weight an address that torch chose, on any CPU and with any library;
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
"""Bytes: torch aligns every tensor that it allocates on the CPU to a multiple of this."""
_MKL_MODE = "MKL_CBWR"


def ask_for_steady_kernels() -> None:
    """Make MKL choose kernels by shape alone, unless the user chose a mode. It reads this at its first product."""
    os.environ.setdefault(_MKL_MODE, "AUTO,STRICT")


def own_memory(module: nn.Module, *, also_aligned: bool = True) -> None:
    """Copy a module's CPU weights into memory that torch allocated, one by one and in place.

    Loaded weights may be a file's own pages: badly aligned, and gone if the file is truncated.
    `also_aligned=False` leaves aligned weights alone.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.device.type == "cpu" and (also_aligned or tensor.data_ptr() % ALIGNMENT):
            tensor.data = tensor.data.clone()


def describe_arithmetic() -> dict[str, str]:
    """The CPU and the matrix library: runs are equal bit for bit only if these are equal."""
    import torch

    library = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    blas = library[1] if library else "unknown"
    mode = f" {os.environ.get(_MKL_MODE, 'default')}" if blas == "mkl" else ""
    return {"cpu": f"{_cpu_name()}, {torch.backends.cpu.get_cpu_capability()}", "blas": blas + mode}


def changed_circumstances(then: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """What differs between two descriptions of a run's machine, for the keys that both have."""
    return [f"{name} was {then[name]}, now {now[name]}" for name in now if name in then and then[name] != now[name]]


def _cpu_name() -> str:
    """The CPU's model name if the system reports it, otherwise its architecture."""
    with suppress(OSError):  # only Linux has this file
        if found := re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return found[1].strip()
    return platform.processor() or platform.machine()
