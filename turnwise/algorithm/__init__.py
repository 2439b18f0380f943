"""Algorithms as rows of independent choices; what a row means; what it computes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from turnwise.algorithm.explain import explain
from turnwise.algorithm.parts import AXES, Part
from turnwise.algorithm.presets import PRESETS, find_algorithm, load, preset
from turnwise.algorithm.row import Algorithm, Critic
from turnwise.algorithm.rules import resolve

if TYPE_CHECKING:
    from turnwise.algorithm.objective import Loss, apply_filters, compute_credit, compute_loss, make_scale
    from turnwise.ops.credit import Credit

# What computes needs torch, which naming and listing algorithms does not: it loads on first use.
_OBJECTIVE = ("Loss", "apply_filters", "compute_credit", "compute_loss", "make_scale")
_HOME_OF = {**dict.fromkeys(_OBJECTIVE, "turnwise.algorithm.objective"), "Credit": "turnwise.ops.credit"}
__all__ = [
    "AXES",
    "PRESETS",
    "Algorithm",
    "Credit",
    "Critic",
    "Loss",
    "Part",
    "apply_filters",
    "compute_credit",
    "compute_loss",
    "explain",
    "find_algorithm",
    "load",
    "make_scale",
    "preset",
    "resolve",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'turnwise.algorithm' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)
