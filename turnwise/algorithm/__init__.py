"""Algorithms as rows of independent choices; what a row means; what it computes."""

from turnwise.algorithm.explain import explain
from turnwise.algorithm.objective import Loss, apply_filters, compute_credit, compute_loss, make_scale
from turnwise.algorithm.parts import AXES, Part
from turnwise.algorithm.presets import PRESETS, find_algorithm, load, preset
from turnwise.algorithm.row import Algorithm, Critic
from turnwise.algorithm.rules import resolve
from turnwise.ops.credit import Credit

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
