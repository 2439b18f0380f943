"""Algorithms as rows of independent choices: their meaning and their computation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from turnwise.algorithm.axes import AXES
from turnwise.algorithm.explain import explain
from turnwise.algorithm.parts import Part
from turnwise.algorithm.presets import PRESETS, find_algorithm, load, preset
from turnwise.algorithm.row import Algorithm, Critic
from turnwise.algorithm.rules import resolve
from turnwise.ops.facts import Need, Trait, declares, refuses, warns

if TYPE_CHECKING:
    from turnwise.algorithm.objective import (
        apply_filters,
        compute_credit,
        compute_loss,
        compute_text_loss,
        make_scale,
    )
    from turnwise.ops.credit import Credit
    from turnwise.ops.terms import Level, Loss, Ratios, Terms

# Computing needs torch; naming and listing algorithms does not. So torch loads on first use.
_HOME_OF = {
    **dict.fromkeys(
        ("apply_filters", "compute_credit", "compute_loss", "compute_text_loss", "make_scale"),
        "turnwise.algorithm.objective",
    ),
    **dict.fromkeys(("Level", "Loss", "Ratios", "Terms"), "turnwise.ops.terms"),
    "Credit": "turnwise.ops.credit",
}
__all__ = [
    "AXES",
    "PRESETS",
    "Algorithm",
    "Credit",
    "Critic",
    "Level",
    "Loss",
    "Need",
    "Part",
    "Ratios",
    "Terms",
    "Trait",
    "apply_filters",
    "compute_credit",
    "compute_loss",
    "compute_text_loss",
    "declares",
    "explain",
    "find_algorithm",
    "load",
    "make_scale",
    "preset",
    "refuses",
    "resolve",
    "warns",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'turnwise.algorithm' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)
