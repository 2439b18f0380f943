"""Rollout: agents, episodes, the scheduler that plays many at once, and packing of the result.

The names load on first use, so that running only environments does not import torch.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "agents": ("Action", "Agent", "ConstantAgent", "FunctionAgent", "HumanAgent", "OracleAgent", "RandomAgent", "View"),
    "episode": ("EpisodeSpec", "Limits", "tries"),
    "packing": ("pack",),
    "policy_agent": ("PolicyAgent",),
    "scheduler": ("RolloutStats", "Scheduler"),
}
_HOME_OF = {name: f"turnwise.rollout.{home}" for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'turnwise.rollout' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
